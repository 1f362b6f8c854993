"""Vocabularies: one worker writes each, together they are bounded, and what nobody uses goes."""

from typing import Any

from tests.support.batches import OWNER, TOKENIZER, submit

from rolloutpool_common.store import Store
from rolloutpool_common.store.pieces import KEPT_SECONDS, WRITING_SECONDS, Wanted

OTHER = "ef" * 32
WRITTEN = b"gzip of " * 10


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
    assert await store.pieces.read(TOKENIZER) == WRITTEN


async def test_all_together_take_no_more_than_is_allowed(store: Store, raw: Any) -> None:
    most = 2 * len(WRITTEN)
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=most)
    assert not await store.pieces.keep(OTHER, WRITTEN + b"x", max_bytes=most)
    assert await store.pieces.read(OTHER) is None
    assert await store.pieces.keep(OTHER, WRITTEN, max_bytes=most)
    assert not await store.pieces.keep("12" * 32, b"x", max_bytes=most)
    # One that has expired makes room.
    await raw.delete(f"rp:pieces:{TOKENIZER}")
    assert await store.pieces.keep("12" * 32, b"x", max_bytes=most)
    assert set(await raw.hkeys("rp:pieces")) == {OTHER.encode(), b"12" * 32}


async def test_what_is_used_stays_and_what_was_used_longest_ago_makes_room(store: Store, raw: Any) -> None:
    older, old, used, new = (f"{n}" * 64 for n in range(4))
    most = 3 * len(WRITTEN)
    for sha in (older, old, used):
        assert await store.pieces.keep(sha, WRITTEN, max_bytes=most)
    # All three were used a moment ago.
    assert not await store.pieces.keep(new, WRITTEN, max_bytes=most)
    for days, sha in ((9, older), (8, old), (7, used)):
        await raw.expire(f"rp:pieces:{sha}", KEPT_SECONDS - days * 24 * 3600)
    # A worker has this one loaded, and somebody reads the next.
    assert await store.pieces.wanted(used, "w1") is Wanted.KEPT
    assert await store.pieces.read(old) == WRITTEN
    assert await store.pieces.keep(new, WRITTEN, max_bytes=most)
    assert await store.pieces.read(older) is None
    assert set(await raw.hkeys("rp:pieces")) == {sha.encode() for sha in (old, used, new)}
    for sha in (old, used, new):
        assert 0 < await raw.ttl(f"rp:pieces:{sha}") <= KEPT_SECONDS


async def test_one_that_an_earlier_release_keeps_for_good_begins_to_expire(store: Store, raw: Any) -> None:
    assert await store.pieces.keep(TOKENIZER, WRITTEN, max_bytes=1000)
    await raw.persist(f"rp:pieces:{TOKENIZER}")
    assert await store.pieces.keep(TOKENIZER, b"other", max_bytes=1000)
    assert await store.pieces.read(TOKENIZER) == WRITTEN
    assert await raw.ttl(f"rp:pieces:{TOKENIZER}") > 0


async def test_what_0_2_has_noted_of_users_goes_with_their_batches(store: Store, raw: Any) -> None:
    (uid,) = await submit(store)
    batch_id = uid.partition("-")[0]
    await store.rollouts.cancel(uid)
    await raw.hset(f"rp:batch:{batch_id}", f"made_with:{TOKENIZER}", 1)
    for key in (f"rp:made_with:{TOKENIZER}", f"rp:made_with:{TOKENIZER}:{OWNER}"):
        await raw.sadd(key, batch_id)
    await store.batches.delete(batch_id)
    assert await raw.keys("rp:made_with*") == []
