"""Vocabularies: one worker writes each, its users alone read it, and nothing of it stays when they have gone."""

from typing import Any

import pytest
from tests.support.batches import OWNER, TOKENIZER, claim, result_of, submit

from rolloutpool_common.store import Store
from rolloutpool_common.store.pieces import IDLE_SECONDS, WRITING_SECONDS, Wanted

OTHER = "ef" * 32
WRITTEN = b"gzip of " * 10


@pytest.fixture
def raw(store: Store) -> Any:
    """Redis itself."""
    return store.pieces._redis


async def end(store: Store, uid: str, sha: str = TOKENIZER) -> None:
    claimed = await claim(store, uid)
    await store.rollouts.finish(claimed, result_of(claimed, tokenizer={"tokenizer_sha256": sha}))


async def test_one_worker_at_a_time_is_told_to_write(store: Store, other: Store, raw: Any) -> None:
    assert await store.pieces.wanted(TOKENIZER, "w1") is Wanted.WRITE
    assert await other.pieces.wanted(TOKENIZER, "w2") is Wanted.AWAITED
    # It asks again before it has written, or its answer was lost.
    assert await store.pieces.wanted(TOKENIZER, "w1") is Wanted.WRITE
    assert await other.pieces.wanted(OTHER, "w2") is Wanted.WRITE
    # It dies: after a while another one writes.
    assert 0 < await raw.ttl(f"rp:pieces_writer:{TOKENIZER}") <= WRITING_SECONDS
    await raw.delete(f"rp:pieces_writer:{TOKENIZER}")
    assert await other.pieces.wanted(TOKENIZER, "w2") is Wanted.WRITE
    assert await other.pieces.keep(TOKENIZER, WRITTEN, max_bytes=1000)
    assert await store.pieces.wanted(TOKENIZER, "w1") is Wanted.KEPT


async def test_the_first_that_is_kept_stays(store: Store) -> None:
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=1000)
    assert await store.pieces.keep(TOKENIZER, b"other", max_bytes=1000)
    assert await store.pieces.read(TOKENIZER, None) == WRITTEN


async def test_all_together_take_no_more_than_is_allowed(store: Store, raw: Any) -> None:
    most = 2 * len(WRITTEN)
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=most)
    assert not await store.pieces.keep(OTHER, WRITTEN + b"x", max_bytes=most)
    assert await store.pieces.read(OTHER, None) is None
    assert await store.pieces.keep(OTHER, WRITTEN, max_bytes=most)
    assert not await store.pieces.keep("12" * 32, b"x", max_bytes=most)
    # One that has expired makes room.
    await raw.delete(f"rp:pieces:{TOKENIZER}")
    assert await store.pieces.keep("12" * 32, b"x", max_bytes=most)
    assert set(await raw.hkeys("rp:pieces")) == {OTHER.encode(), b"12" * 32}


async def test_the_capacity_counts_them(store: Store, raw: Any) -> None:
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=1000)
    assert sum(map(int, await raw.hvals("rp:pieces"))) == len(WRITTEN)


async def test_only_whose_ended_rollouts_it_made_may_read(store: Store) -> None:
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=1000)
    (mine,) = await submit(store)
    (theirs,) = await submit(store, owner="bob")
    assert await store.pieces.read(TOKENIZER, OWNER) is None
    await end(store, mine)
    await end(store, theirs, OTHER)
    assert await store.pieces.read(TOKENIZER, OWNER) == WRITTEN
    assert await store.pieces.read(TOKENIZER, "bob") is None
    assert await store.pieces.read(OTHER, "bob") is None
    assert await store.pieces.read(TOKENIZER, None) == WRITTEN
    # Names of owners and hashes that would run into each other.
    for owner in ("", f"{OWNER}:", "*", f"x:{OWNER}"):
        assert await store.pieces.read(TOKENIZER, owner) is None


async def test_the_last_deletion_takes_the_right_and_an_hour_later_the_vocabulary(store: Store, raw: Any) -> None:
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=1000)
    key = f"rp:pieces:{TOKENIZER}"
    assert 0 < await raw.ttl(key) <= IDLE_SECONDS
    uids = [*await submit(store, 3), *await submit(store, owner="bob"), *await submit(store, v1=True)]
    for uid in uids:
        await end(store, uid)
        assert await raw.ttl(key) == -1
    first, bobs, last = (uid.partition("-")[0] for uid in (uids[0], uids[3], uids[4]))
    # Again, because the process that deletes it may die and another one begins anew.
    await store.pieces.forget_batch(bobs, "bob")
    await store.batches.delete(bobs)
    assert await store.pieces.read(TOKENIZER, "bob") is None
    await store.batches.delete(first)
    assert await store.pieces.read(TOKENIZER, OWNER) == WRITTEN
    assert await raw.ttl(key) == -1
    await store.batches.delete(last)
    assert await store.pieces.read(TOKENIZER, OWNER) is None
    assert 0 < await raw.ttl(key) <= IDLE_SECONDS
    assert [name async for name in raw.scan_iter("rp:made_with:*")] == []
    # A worker that still has it puts the end off.
    await raw.expire(key, 5)
    assert await store.pieces.wanted(TOKENIZER, "w1") is Wanted.KEPT
    assert await raw.ttl(key) > 5


async def test_a_vocabulary_may_come_after_its_rollouts(store: Store, raw: Any) -> None:
    (uid,) = await submit(store)
    await end(store, uid)
    assert await store.pieces.read(TOKENIZER, OWNER) is None
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=1000)
    assert await raw.ttl(f"rp:pieces:{TOKENIZER}") == -1
    assert await store.pieces.read(TOKENIZER, OWNER) == WRITTEN


@pytest.mark.parametrize("sha", ["", "x", "AB" * 32, "ab" * 33, "ab" * 31 + "\n"])
async def test_what_is_no_hash_is_not_noted(store: Store, raw: Any, sha: str) -> None:
    (uid,) = await submit(store)
    await end(store, uid, sha)
    assert [name async for name in raw.scan_iter("rp:made_with*")] == []


async def test_fifty_rollouts_of_a_batch_leave_one_note(store: Store, raw: Any) -> None:
    uids = await submit(store, 50)
    for uid in uids:
        await end(store, uid)
    assert await raw.scard(f"rp:made_with:{TOKENIZER}:{OWNER}") == 1
    assert await raw.smembers(f"rp:made_with:{TOKENIZER}") == {OWNER.encode()}
