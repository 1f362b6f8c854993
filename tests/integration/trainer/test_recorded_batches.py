"""What the viewer's pages ask of ended batches has the same answer from a file of their results as from the pool.

The pool is a real API on a real Redis. The file has the results that this API has given out.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.trainer.test_client_groups import LOST, sampled
from tests.support.inside_api import Api, client_of
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.protocol.rows import ROW_FIELDS, RowPage
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.viewer.pool_relay import PoolRelay
from rolloutpool_trainer.viewer.result_file import ResultFile


class Recorded:
    """Two ended batches, and who tells of them."""

    def __init__(self, batches: list[str], answer: Callable[[str, str], tuple[int, Any]]) -> None:
        self.older, self.newer = batches
        self._answer = answer

    async def status(self, path: str, query: str = "") -> int:
        """How a question is answered."""
        return (await asyncio.to_thread(self._answer, path, query))[0]

    async def ask(self, path: str, query: str = "") -> Any:
        """What a question is answered with."""
        status, document = await asyncio.to_thread(self._answer, path, query)
        assert status == 200, document
        return json.loads(document) if isinstance(document, bytes) else document

    async def rows(self, query: str) -> dict[str, list[Any]]:
        """Columns of the older batch's table."""
        page = RowPage.model_validate(await self.ask(f"/v1/batches/{self.older}/rollouts", query))
        assert page.next_cursor is None
        return page.columns


async def ended(client: AsyncRolloutClient, worker: ScriptedWorker) -> list[str]:
    """Submits two batches and ends all of their rollouts."""
    batches = []
    for step in ("1", "2"):
        # A result knows the labels of its rollout, and not those of its batch.
        rollouts = [
            {
                "group": group,
                "n": 2,
                "messages": [{"role": "user", "content": group}],
                "rollout_id": f"{step}/{group}",
                "labels": {"step": step, "group": group},
            }
            for group in ("a", "b é")
        ]
        labels, trainer = {"step": step}, "http://127.0.0.1:8081"
        batch = await client.submit(rollouts, defaults={"tokenizer_name": "tiny"}, labels=labels, trainer=trainer)
        assert batch.accepted is not None
        *right, lost = batch.accepted.rollouts
        for turns, uid in enumerate(right, start=1):
            await worker.end(uid, num_llm_calls=turns, **sampled("step-1"))
        await worker.end(lost, **LOST)
        batches.append(batch.batch_id)
    return batches


@pytest.fixture(params=["file", "pool"])
async def recorded(
    request: pytest.FixtureRequest, api: Api, client: AsyncRolloutClient, worker: ScriptedWorker, tmp_path: Path
) -> AsyncIterator[Recorded]:
    batches = await ended(client, worker)
    if request.param == "pool":
        relay = PoolRelay(api.url, None)
        yield Recorded(batches, relay.answer)
        relay.close()
        return
    path = tmp_path / "results.jsonl"
    async with client_of(api) as pool:
        pages = [(await pool.get(f"/v1/batches/{name}/results")).json() for name in batches]
    lines = [json.dumps(item["result"]) + "\n" for page in pages for item in page["items"]]
    path.write_text("".join(lines))
    yield Recorded(batches, ResultFile(path).answer)


async def test_batches_are_listed_the_last_one_first(recorded: Recorded) -> None:
    found = (await recorded.ask("/v1/batches"))["batches"]
    assert [(batch["batch_id"], batch["labels"]) for batch in found] == [
        (recorded.newer, {"step": "2"}),
        (recorded.older, {"step": "1"}),
    ]
    for batch in found:
        told = (batch["state"], batch["total"], batch["turns"], batch["sampled_tokens"])
        assert told == ("complete", 4, 7, 3)
        assert {name: count for name, count in batch["counts"].items() if count} == {"completed": 3, "failed": 1}
        assert batch["failures"] == {"infra:network_error": 1}
        state = await recorded.ask(f"/v1/batches/{batch['batch_id']}")
        assert (state["state"], state["total"], state["waiting"]) == ("complete", 4, [])


async def test_a_table_has_all_columns_and_those_rows_that_are_asked_for(recorded: Recorded) -> None:
    whole = await recorded.rows("limit=10000")
    assert set(whole) == set(ROW_FIELDS)
    assert whole["uid"] == [f"{recorded.older}-{index}" for index in range(4)]
    assert (whole["turns"], whole["sampled_tokens"]) == ([1, 2, 3, 1], [1, 1, 1, 0])
    assert whole["status"] == ["completed"] * 3 + ["failed"]
    assert await recorded.rows("fields=index&limit=1000&where=group%3Db%20%C3%A9") == {"index": [2, 3]}
    assert await recorded.rows("fields=index,kind&where=status%3Dfailed") == {"index": [3], "kind": ["infra"]}


async def test_a_rollout_is_found_by_its_uid_and_by_its_callers_name(recorded: Recorded) -> None:
    uid = f"{recorded.older}-2"
    view = RolloutView.model_validate(await recorded.ask(f"/v1/rollouts/{uid}"))
    assert (view.uid, view.index, view.group, view.status) == (uid, 2, "b é", "completed")
    result = RolloutResult.model_validate(view.result)
    assert (result.uid, result.samples[0].response_ids, result.labels) == (uid, [2], {"step": "1", "group": "b é"})
    named = RolloutView.model_validate(await recorded.ask(f"/v1/rollouts/{view.rollout_id}"))
    assert named == view


async def test_what_is_not_there_and_what_cannot_be_asked(recorded: Recorded) -> None:
    for path in (
        "/v1/rollouts/b9-9",
        "/v1/batches/b9",
        "/v1/batches/b9/rollouts",
        "/v1/workers",
        "/v1/x/../workers",
        "",
    ):
        assert await recorded.status(path) == 404, path
    assert await recorded.status(f"/v1/batches/{recorded.older}/rollouts", "where=nothing%3D3") == 422
