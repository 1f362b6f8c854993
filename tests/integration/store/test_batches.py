"""Batches are committed whole, counted exactly, read once each by cursor, and leave nothing when deleted."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.support.batches import OWNER, batch_of, finish, new_batch, status_of, submit

from rolloutpool_common.protocol.batch import BatchState, Priority
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.store import ClaimRefused, Store, StoreUnavailable
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.staging import STAGE_SECONDS


async def test_many_submits_of_one_key_at_once_make_one_batch(store: Store, other: Store) -> None:
    batches = [new_batch(5, key="k") for _ in range(10)]
    answers = await asyncio.gather(
        *((store if i % 2 else other).batches.submit(batch) for i, batch in enumerate(batches))
    )
    assert len({answer.batch_id for answer in answers}) == 1
    assert [answer.created for answer in answers].count(True) == 1


async def test_a_commit_that_arrives_twice_counts_once(store: Store) -> None:
    batch = new_batch(3, key="k")
    await store.batches.submit(batch)
    again = await store.connection.script("commit", batch.batch_id, "rp:idempotency:tests:k", "d", 3, "default", "a", 1)
    assert named(again)["batch"] == batch.batch_id.encode()
    assert (named(again)["outcome"], named(again)["digest"]) == (b"created", b"d")
    tickets = await store.outbox.reserve(Priority.DEFAULT, 10)
    assert [ticket.index for ticket in tickets] == [0, 1, 2]


async def test_a_submit_that_dies_before_its_commit_leaves_nothing_that_lasts(
    store: Store, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: object) -> object:
        raise StoreUnavailable

    batch = new_batch([{"rollout_id": f"r{i}"} for i in range(1200)], key="k", groups=["g"] * 1200, deadline_s=60)
    with monkeypatch.context() as patch:
        patch.setattr(store.connection, "script", killed)
        with pytest.raises(StoreUnavailable):
            await store.batches.submit(batch)
    left = [key async for key in raw.scan_iter("rp:stage:*")]
    assert len(left) == 4
    for key in left:
        assert 0 < await raw.ttl(key) <= STAGE_SECONDS
    assert await store.batches.status(batch.batch_id, OWNER) is None
    assert await store.rollouts.claim(f"{batch.batch_id}-0", "w1") == ClaimRefused("gone")
    assert await store.rollouts.find("r0", OWNER) is None
    assert await store.outbox.reserve(Priority.DEFAULT, 10) == []
    # The key was not used up: trying again works.
    assert (await store.batches.submit(new_batch(1, key="k"))).created


async def test_a_committed_batch_does_not_expire(store: Store, raw: Redis) -> None:
    await submit(store, 3, groups=["a", None, "b"], deadline_s=60)
    keys = [key async for key in raw.scan_iter("rp:*")]
    assert {key.rsplit(":", 1)[-1] for key in keys} >= {"items", "groups", "deadlines", "outbox"}
    assert {await raw.ttl(key) for key in keys} == {-1}


async def test_status_adds_up_what_results_report(store: Store) -> None:
    uids = await submit(store, 3, labels={"run": "7"}, priority=Priority.HIGH)
    changes: list[dict[str, Any]] = [
        {"drift": {"retokenized": 2}, "alignment": Alignment.FORKED, "num_llm_calls": 3},
        {"warnings": ["eos_withheld"]},
    ]
    for uid, change in zip(uids, changes, strict=False):
        await finish(store, uid, **change)
    status = await status_of(store, uids[0])
    assert status.alignment == {"exact": 1, "forked": 1}
    assert (status.drift, status.warnings) == ({"retokenized": 2}, {"eos_withheld": 1})
    assert (status.sampled_tokens, status.total_tokens, status.turns) == (4, 10, 4)
    assert (status.progress, status.state, status.finished_at) == (2 / 3, BatchState.RUNNING, None)
    assert (status.labels, status.priority) == ({"run": "7"}, Priority.HIGH)


async def test_pages_cover_every_result_once_while_more_arrive(store: Store, other: Store) -> None:
    uids = await submit(store, 100)
    batch_id = batch_of(uids[0])

    async def finish_all() -> None:
        for start in range(0, 100, 10):
            await asyncio.gather(*(finish(other, uid) for uid in uids[start : start + 10]))

    found: list[str] = []
    cursors: list[str] = []

    async def read() -> None:
        cursor, complete = "0", False
        while not complete:
            page = await store.batches.results(batch_id, cursor, 7)
            assert len(page.items) <= 7
            found.extend(RolloutResult.model_validate_json(data).uid for _, data in page.items)
            cursors.extend(place for place, _ in page.items)
            cursor, complete = page.next_cursor, page.complete

    await asyncio.gather(finish_all(), read())
    assert sorted(found) == sorted(uids)
    # Each item's own cursor resumes right behind it.
    after = await store.batches.results(batch_id, cursors[41], 100)
    assert [place for place, _ in after.items] == cursors[42:]


@pytest.mark.parametrize("limit", [4, 5, 6])
async def test_a_page_is_complete_only_when_nothing_can_follow(store: Store, limit: int) -> None:
    uids = await submit(store, 5)
    batch_id = batch_of(uids[0])
    for uid in uids[:4]:
        await finish(store, uid)
    assert not (await store.batches.results(batch_id, "0", limit)).complete
    await store.rollouts.cancel(uids[4])
    page = await store.batches.results(batch_id, "0", limit)
    rest = await store.batches.results(batch_id, page.next_cursor, limit)
    assert len(page.items) + len(rest.items) == 5
    assert page.complete is (limit == 6)
    assert rest.complete


async def test_a_name_that_a_later_batch_took_over_survives_the_deletion_of_the_first(store: Store) -> None:
    first = await submit(store, [{"rollout_id": "r"}])
    second = await submit(store, [{"rollout_id": "r"}])
    assert await store.rollouts.find("r", OWNER) == second[0]
    for uids in (first, second):
        batch_id = batch_of(uids[0])
        await store.batches.cancel(batch_id)
        await store.batches.delete(batch_id)
        assert await store.rollouts.find("r", OWNER) == (second[0] if uids is first else None)


async def test_a_name_that_is_taken_over_in_the_middle_of_a_deletion_stays(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel by that name would find nothing, and would be kept for a rollout to come."""
    first = await submit(store, [{"rollout_id": "r"}])
    await store.batches.cancel(batch_of(first[0]))
    second: list[str] = []
    run, read = store.connection.script, store.connection.redis.mget

    async def script(name: str, *args: Any) -> Any:
        answer = await run(name, *args)
        if name == "forget_names":
            second.extend(await submit(other, [{"rollout_id": "r"}]))
        return answer

    async def mget(*args: Any) -> Any:
        answer = await read(*args)
        second.extend(await submit(other, [{"rollout_id": "r"}]))
        return answer

    monkeypatch.setattr(store.connection, "script", script)
    monkeypatch.setattr(store.connection.redis, "mget", mget)
    await store.batches.delete(batch_of(first[0]))
    assert await store.rollouts.find("r", OWNER) == second[0]


async def test_a_key_is_free_while_its_batch_is_deleted(store: Store, raw: Redis) -> None:
    """The process that deleted it has died. Who submits again must not be given a batch that goes in a moment."""
    first = batch_of((await submit(store, key="k"))[0])
    await store.batches.cancel(first)
    await raw.hset(f"rp:batch:{first}", "deleting", "1")
    assert await store.batches.submitted(OWNER, "k") is None
    second = new_batch(key="k", digest="other")
    assert await store.batches.submit(second) == (second.batch_id, True)
    # As of any batch that has not ended, and not of the first one.
    assert await raw.ttl(f"rp:idempotency:{OWNER}:k") == -1
    await store.batches.delete(first)
    assert await store.batches.submit(second) == (second.batch_id, True)
    assert await store.batches.submit(new_batch(key="k", digest="other")) == (second.batch_id, False)
