"""What a worker is told with a claim."""

import pytest
from tests.support.batches import claim, finish, new_batch, submit, uids_of

from rolloutpool_common.store import Claim, ClaimRefused, Store


async def test_a_claim_has_what_its_batch_and_its_rollout_say(store: Store) -> None:
    (uid,) = await submit(store, [{"max_turns": 3, "rollout_id": "mine"}], groups=["g"], deadline_s=60)
    claimed = await claim(store, uid)
    assert (claimed.uid, claimed.index, claimed.attempt, claimed.group) == (uid, 0, 1, "g")
    assert (claimed.spec.max_turns, claimed.spec.rollout_id) == (3, "mine")
    assert claimed.deadline_in_s is not None
    assert 59 < claimed.deadline_in_s <= 60
    # A batch without a run, without attachments and without a grader has none of them.
    assert (claimed.attachment_bytes, claimed.stage, claimed.notes, claimed.clean) == (0, None, {}, True)
    assert claimed.accepted_ms(claimed.claimed_at + 1) == claimed.queued_ms + 1000


async def test_a_claim_says_how_much_may_be_attached(store: Store) -> None:
    batch = new_batch(2, attaches=True, attachment_bytes=5000)
    await store.batches.submit(batch)
    first, second = uids_of(batch)
    assert (await claim(store, first)).attachment_bytes == 5000
    assert await store.rollouts.claim(first, "w2") is ClaimRefused.TAKEN
    assert (await claim(store, second)).attachment_bytes == 5000


async def test_the_calls_before_a_drain_are_told_each_time_that_the_claim_arrives(
    store: Store,
) -> None:
    (uid,) = await submit(store)
    await store.rollouts.release(await claim(store, uid), clean=True, tried=3)
    # The same claim again, because its answer was lost.
    first, again = [await store.rollouts.claim(uid, "w1", token="t") for _ in range(2)]
    assert isinstance(first, Claim)
    assert isinstance(again, Claim)
    assert (first.attempt, first.tried) == (again.attempt, again.tried) == (2, 3)
    # Its attempt ended otherwise: the next one begins with nothing.
    await store.rollouts.release(again, clean=True)
    assert (await claim(store, uid)).tried == 0


async def test_a_late_ticket_of_a_batch_that_is_being_deleted_brings_nothing_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uid,) = await submit(store)
    claimed = await finish(store, uid)

    run = store.connection.script

    async def claim_late(name: str, *arguments: object) -> object:
        if name == "forget_usage":
            # Its rollouts are deleted, and the batch is still there.
            assert await store.rollouts.claim(uid, "w2") is ClaimRefused.GONE
        return await run(name, *arguments)

    monkeypatch.setattr(store.connection, "script", claim_late)
    await store.batches.delete(claimed.batch_id)
    assert await store.connection.redis.keys(f"*{claimed.batch_id}*") == []
