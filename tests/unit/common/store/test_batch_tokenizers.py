"""Which tokenizers the rollouts of a batch need, and which ones the live batches do."""

import pytest
from tests.support.batches import NOWHERE, OWNER, claim, new_batch, submit, uids_of

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import NewBatch, Store
from rolloutpool_common.store.batch_tokenizers import NeededTokenizer, TokenizerRef

TINY_REF = TokenizerRef("rolloutpool/tiny")


async def test_a_rollout_has_its_batch_s_tokenizer_or_its_own(store: Store) -> None:
    batch = new_batch(
        [{}, {"tokenizer_name": "b", "tokenizer_revision": "v2"}, {"tokenizer_revision": "v3"}],
        shared={"tokenizer_name": "a"},
    )
    await store.batches.submit(batch)
    found = [await store.batch_tokenizers.of_rollout(uid) for uid in uids_of(batch)]
    wanted = [TokenizerRef("a"), TokenizerRef("b", "v2"), TokenizerRef("a", "v3")]
    assert found == [NeededTokenizer(ref, OWNER) for ref in wanted]


async def test_a_batch_is_read_once(store: Store) -> None:
    uids = await submit(store, 2, shared={"tokenizer_name": "a"})
    needed = NeededTokenizer(TokenizerRef("a"), OWNER, NOWHERE)
    assert await store.batch_tokenizers.of_rollout(uids[0]) == needed
    await store.connection.redis.delete(f"rp:batch:{uids[0].rpartition('-')[0]}")
    assert await store.batch_tokenizers.of_rollout(uids[1]) == needed


@pytest.mark.parametrize(
    "batch",
    [
        new_batch(v1=True),
        new_batch(run="a run"),
        new_batch(trunk=b"{}"),
        new_batch(shared={"environment": {"name": "e"}}),
        new_batch(shared={"protocol": "vllm"}),
        new_batch(shared={"agent": "own"}),
    ],
    ids=["v1", "run", "fork", "environment", "engine", "agent"],
)
async def test_a_trainer_is_named_only_where_it_is_asked_first_of_all(store: Store, batch: NewBatch) -> None:
    await store.batches.submit(batch)
    assert await store.batch_tokenizers.of_rollout(uids_of(batch)[0]) == NeededTokenizer(TINY_REF, OWNER)


async def test_what_is_no_rollout_needs_nothing(store: Store) -> None:
    assert await store.batch_tokenizers.of_rollout("nonsense") is None
    assert await store.batch_tokenizers.of_rollout("deleted-0") is None


async def test_live_batches_are_those_that_wait_and_those_that_run(store: Store) -> None:
    (running,) = await submit(store, shared={"tokenizer_name": "running"})
    await store.outbox.reserve(Priority.DEFAULT, 9)
    await claim(store, running, "w")
    await submit(store, shared={"tokenizer_name": "published"})
    await store.outbox.reserve(Priority.DEFAULT, 9)
    await submit(store, shared={"tokenizer_name": "waiting"})
    await submit(store, shared={"tokenizer_name": "waiting"})
    names = ["waiting", "published", "running"]
    assert [ref.name for ref in await store.batch_tokenizers.of_live_batches(5)] == names
    assert [ref.name for ref in await store.batch_tokenizers.of_live_batches(2)] == names[:2]
    assert await store.batch_tokenizers.of_live_batches(0) == []


async def test_an_empty_pool_needs_nothing(store: Store) -> None:
    assert await store.batch_tokenizers.of_live_batches(5) == []
