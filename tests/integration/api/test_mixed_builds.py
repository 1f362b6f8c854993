"""A worker of another build hides no other one, fails no request, and gets nothing that it cannot run."""

from typing import Any

import httpx
import orjson
import pytest
from tests.support.api_requests import batch
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker, calculator
from tests.support.waiting import until

from rolloutpool_common.capabilities.grading.wire import GraderChoice
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.queue.celery_app import KEY_PREFIX, queue_name
from rolloutpool_common.store import Store, keys

FIRST_RELEASE: dict[str, Any] = {
    **{"host": "old", "pid": 7, "slots": 32, "agents": ["tool_calls"], "termination_strategies": ["task_completion"]},
    **{"tools": [tool.model_dump() for tool in calculator()], "tokenizers": {}, "versions": {}, "started_at": 1.7e9},
}
"""What workers of dd99e53 announce: no role."""
MAZE = {**batch(1)["defaults"], "environment": {"name": "maze"}}


async def announce_raw(raw: Any, worker: str, about: bytes) -> None:
    seconds, _ = await raw.time()
    await raw.hset(keys.worker(worker), mapping={"about": about, "running": 0})
    await raw.zadd(keys.WORKERS, {worker: seconds * 1000})


@pytest.mark.parametrize("about", [b"{", b"[]", b'{"wire": 99}', orjson.dumps({**FIRST_RELEASE, "slots": "many"})])
async def test_one_that_cannot_be_read_is_listed_and_everything_answers(
    client: httpx.AsyncClient, worker: ScriptedWorker, raw: Any, about: bytes
) -> None:
    await announce_raw(raw, "strange", about)
    answers = [
        await client.get("/readyz"),
        await client.get("/v1/workers"),
        await client.get("/tools"),
        await client.get("/metrics"),
        await client.post("/v1/batches", json=batch(1)),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 202]
    listed = answers[1].json()
    assert [one["worker_id"] for one in listed["workers"]] == ["w1"]
    ((worker_id, why),) = [(one["worker_id"], one["why"]) for one in listed["unreadable"]]
    assert worker_id == "strange"
    assert why
    state = await client.get(f"/v1/batches/{answers[4].json()['batch_id']}")
    assert state.status_code == 200


async def test_alone_it_makes_no_pool_ready_and_the_reason_says_so(client: httpx.AsyncClient, raw: Any) -> None:
    await announce_raw(raw, "strange", b'{"wire": 99}')
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert "worker strange cannot be read: it announces wire version 99" in answer.text
    # Nobody knows what it has, so names are not checked.
    assert (await client.post("/v1/batches", json=batch(1))).status_code == 202


async def test_the_announcement_of_the_first_release_is_read(client: httpx.AsyncClient, raw: Any) -> None:
    await announce_raw(raw, "old", orjson.dumps(FIRST_RELEASE))
    assert (await client.get("/readyz")).status_code == 200
    (listed,) = (await client.get("/v1/workers")).json()["workers"]
    assert (listed["worker_id"], listed["wire"], listed["role"], listed["environments"]) == ("old", 0, "shared", [])
    refused = await client.post("/v1/batches", json=batch(1, defaults=MAZE))
    assert refused.status_code == 422
    assert "no live worker has the environment 'maze'" in refused.text


async def queued_in(raw: Any, offer: str = "") -> int:
    return int(await raw.llen(KEY_PREFIX + queue_name(Priority.DEFAULT, offer)))


async def test_a_regrade_goes_to_those_that_have_the_grader(redis_url: str, store: Store, raw: Any) -> None:
    async with running_api(redis_url) as api, client_of(api) as client:
        await ScriptedWorker(store).announce()
        judge = ScriptedWorker(store, "judge")
        await judge.announce(graders=["judge"])

        async def both() -> bool:
            return bool(await raw.hlen(keys.OFFERS) == 3)

        await until(both)
        accepted = (await client.post("/v1/batches", json=batch(1, priority="high"))).json()
        await judge.end(accepted["rollouts"][0])
        choice = GraderChoice(name="judge").model_dump(mode="json")
        asked = await client.post(
            f"/v1/batches/{accepted['batch_id']}/regrades", json={"grader": choice, "annotation": "again"}
        )
        assert asked.status_code == 202
        offer = next(
            digest.decode() for digest, text in (await raw.hgetall(keys.OFFERS)).items() if b"grader:judge" in text
        )
        assert (await queued_in(raw), await queued_in(raw, offer)) == (0, 1)
