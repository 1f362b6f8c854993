"""What people look at, through a Python client and the real API."""

import gzip

import pytest
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_trainer.capabilities.grading import calls
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_batch import AsyncBatch
from rolloutpool_trainer.errors import BatchRejected, ClientError, NotFound

TRAINER = "http://127.0.0.1:8081"
MESSAGES = [{"role": "user", "content": "1 + 1"}]
DEFAULTS = {"tokenizer_name": "tiny"}


async def submit(client: AsyncRolloutClient, count: int = 1, run: str = "job7", step: str = "1") -> AsyncBatch:
    rollouts = [{"messages": MESSAGES, "n": count}]
    return await client.submit(rollouts, defaults=DEFAULTS, trainer=TRAINER, run=run, labels={"step": step})


async def test_batches_are_listed(client: AsyncRolloutClient, worker: ScriptedWorker) -> None:
    ids = [(await submit(client, step=str(n))).batch_id for n in range(5)]
    assert [summary.batch_id for summary in await client.batches(run="job7")] == ids[::-1]
    assert [summary.batch_id for summary in await client.batches(limit=3)] == ids[:1:-1]
    assert [summary.batch_id for summary in await client.batches(labels={"step": "2"})] == [ids[2]]
    assert await client.batches(state="complete") == await client.batches(v1=True) == []


async def test_a_table_has_a_column_per_field(client: AsyncRolloutClient, worker: ScriptedWorker) -> None:
    batch = await submit(client, count=3)
    assert batch.accepted is not None
    await worker.end(batch.accepted.rollouts[1])
    assert await batch.table(["index", "status"], sort="-turns") == {
        "index": [1, 0, 2],
        "status": ["completed", "queued", "queued"],
    }
    assert (await batch.table(where=["status=completed", "turns>0"]))["uid"] == [batch.accepted.rollouts[1]]


async def test_summaries_come_once_each_as_rollouts_end(client: AsyncRolloutClient, worker: ScriptedWorker) -> None:
    batch = await submit(client, count=3)
    assert batch.accepted is not None
    uids = batch.accepted.rollouts
    await worker.end(uids[2], num_llm_calls=4)
    seen = []
    async for item in batch.summaries():
        seen.append(item)
        if len(seen) == 1:
            # The reader waits at the pool while this one ends.
            await worker.end(uids[0])
        elif len(seen) == 2:
            await client.cancel_rollout(uids[1])
    assert [item.summary["uid"] for item in seen] == [uids[2], uids[0], uids[1]]
    assert [item.summary["status"] for item in seen] == ["completed", "completed", "cancelled"]
    assert seen[0].summary["turns"] == 4
    # Neither texts nor token ids.
    assert "messages" not in seen[0].summary
    assert "1 + 1" not in str(seen[0])

    assert [item async for item in batch.summaries(seen[2].cursor)] == []


async def test_summaries_of_a_batch_of_many_pages(client: AsyncRolloutClient, worker: ScriptedWorker) -> None:
    batch = await submit(client, count=1001)
    await batch.cancel()
    assert sorted([item.summary["index"] async for item in batch.summaries()]) == list(range(1001))


async def test_what_a_token_id_reads(client: AsyncRolloutClient, worker: ScriptedWorker) -> None:
    pieces = TokenPieces(tokenizer_sha256="ab" * 32, pieces=["Hi", None, None], partial={1: "e5ad", 2: "97"})
    written = gzip.compress(pieces.model_dump_json().encode())
    await worker.store.pieces.keep("ab" * 32, written, max_bytes=10**6)
    assert await client.token_pieces("ab" * 32) == pieces

    with pytest.raises(NotFound):
        await client.token_pieces("cd" * 32)
    # What is given can't become another path.
    with pytest.raises(ClientError):
        await client.token_pieces("../batches")


async def test_a_rollout_has_a_history(client: AsyncRolloutClient, worker: ScriptedWorker) -> None:
    batch = await submit(client)
    assert batch.accepted is not None
    await worker.end(batch.accepted.rollouts[0])
    (attempt,) = (await client.history(batch.accepted.rollouts[0])).attempts
    assert (attempt.worker, attempt.outcome) == ("w1", "completed")


async def test_annotations_in_as_many_requests_as_they_need(
    client: AsyncRolloutClient, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_BODY", 100)
    batch = await submit(client, count=8)
    assert batch.accepted is not None
    uids = batch.accepted.rollouts
    await worker.end(uids[0])
    await batch.annotate({"reward": {uid: float(n) for n, uid in enumerate(uids)}}, streams={"kl": {0: []}})
    assert await batch.table(["annotations.reward"]) == {"annotations.reward": [float(n) for n in range(8)]}
    (group,) = await batch.group_statistics()
    assert (group.annotated, group.mean, group.zero_spread) == (8, 3.5, False)
    found = await client.annotations(uids[0])
    assert (found.scalars, found.streams) == ({"reward": 0.0}, {"kl": []})
    with pytest.raises(BatchRejected):
        await batch.annotate({"reward": {99: 1.0}})
