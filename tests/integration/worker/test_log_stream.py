"""A worker's output is one stream of JSON lines, its parent's included, and none says what a rollout says."""

import json
import logging
from typing import Any

from tests.support.batches import NOWHERE
from tests.support.pool import opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import call, say
from tests.support.worker_process import started_worker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.trace import trace_id_of
from rolloutpool_common.rendering import ChatTokenizer

MARKER = "xyzzy"


def the(lines: list[dict[str, Any]], event: str, **fields: object) -> dict[str, Any]:
    """The one line of this event with these fields."""
    (found,) = [line for line in lines if line["event"] == event and fields.items() <= line.items()]
    return found


async def test_a_workers_output_is_json_and_holds_no_text(redis_url: str, tokenizer: ChatTokenizer) -> None:
    script = (say(MARKER, [call("add", '{"a": 1, "b": 2}')]), say(MARKER))
    settings = {
        "ROLLOUTPOOL_LOG_LEVEL": "debug",
        "ROLLOUTPOOL_INFRA_RETRIES": "1",
        "ROLLOUTPOOL_TRAINER_ATTEMPTS": "1",
        "ROLLOUTPOOL_TRAINER_DOWN_TIMEOUT": "0",
    }
    rollout = {"messages": [{"role": "user", "content": MARKER}], "metadata": {"note": MARKER}}
    async with opened_pool(redis_url) as pool, pool.reconciled(), scripted_trainer(tokenizer, *script) as trainer:
        with started_worker(redis_url, [], ["--processes", "1"], **settings) as parent:
            good, bad = await pool.run(
                [{**rollout, "server_url": trainer.url}, {**rollout, "server_url": NOWHERE}],
                shared={"callback_api_key": f"secret-{MARKER}"},
            )
            parent.terminate()
            assert await parent.ended() == 0, parent.log()
            log = parent.log()
    assert (good.status, bad.status) == (RolloutStatus.COMPLETED, RolloutStatus.FAILED)
    assert MARKER not in log
    # Not one line of Celery, of a library or of an interpreter that is no JSON.
    lines = [json.loads(line) for line in log.splitlines()]
    assert all({"event", "level", "timestamp", "logger"} <= line.keys() for line in lines)

    ended = the(lines, "rollout ended", rollout_uid=good.uid)
    bound = {
        "batch_id": good.batch_id,
        "attempt": 1,
        "worker_id": good.worker,
        "trace_id": trace_id_of(good.uid),
    }
    assert bound.items() <= ended.items()
    assert (ended["status"], ended["turns"], ended["turn"]) == ("completed", 2, 2)
    turns = [line["turn"] for line in lines if line["event"] == "turn sampled"]
    assert turns == [1, 2]
    assert bad.failure is not None
    assert the(lines, "rollout ended", rollout_uid=bad.uid)["failure"] == bad.failure.category
    requeued = the(lines, "rollout requeued", rollout_uid=bad.uid)
    assert (requeued["action"], requeued["attempt"], requeued["worker_id"]) == ("requeue", 1, bad.worker)
    assert requeued["why"].startswith("network_error: ")
    drained = the(lines, "drain ended", worker_id=good.worker)
    assert (drained["cancelled"], drained["still_running"]) == (0, 0)
    assert [line for line in lines if logging.getLevelNamesMapping()[line["level"].upper()] >= logging.ERROR] == []
