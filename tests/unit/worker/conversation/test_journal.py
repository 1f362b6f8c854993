"""Records are replayed once each and in order; new ones are durable under the claim, or the claim is lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from tests.support.batches import claim, submit
from tests.support.conversations import MemoryRollouts, claim_of
from tests.support.journals import observation_record, turn_record

from rolloutpool_common.protocol.journal import JournalRecord, ObservationRecord, TurnRecord
from rolloutpool_common.store import Claim, ClaimLost, Store
from rolloutpool_worker.conversation.journal import Journal, StaleJournal
from rolloutpool_worker.drain import Drain

TURN, OBSERVATION = turn_record(1), observation_record(1)


async def test_inherited_records_are_replayed_in_order_and_then_nothing(store: Store) -> None:
    (uid,) = await submit(store)
    place = Journal(store, await claim(store, uid), [TURN, OBSERVATION], Drain()).place(0)
    assert [place.replay(TurnRecord), place.replay(ObservationRecord)] == [TURN, OBSERVATION]
    assert not place.left
    assert not place.is_own


async def test_each_branch_replays_its_own_records(store: Store) -> None:
    (uid,) = await submit(store)
    other = replace(TURN, branch=1)
    journal = Journal(store, await claim(store, uid), [TURN, other, OBSERVATION], Drain())
    first, second, third = map(journal.place, range(3))
    assert second.replay(TurnRecord) == other
    assert not second.left
    assert [first.replay(TurnRecord), first.replay(ObservationRecord)] == [TURN, OBSERVATION]
    assert not third.left
    await journal.write(replace(OBSERVATION, branch=1), turns=2)
    assert [place.is_own for place in (first, second, third)] == [False, True, False]
    assert second.entries == len(TURN.entries) + len(OBSERVATION.entries)


async def test_a_record_of_another_kind_shows_that_the_agent_has_changed(store: Store) -> None:
    (uid,) = await submit(store)
    journal = Journal(store, await claim(store, uid), [TURN], Drain())
    with pytest.raises(StaleJournal, match="record 0 is TurnRecord, not ObservationRecord"):
        journal.place(0).replay(ObservationRecord)


async def test_a_written_record_is_durable_and_then_reported(store: Store) -> None:
    (uid,) = await submit(store)
    seen: list[str] = []
    journal = Journal(store, await claim(store, uid), [], Drain(), after_write=lambda: seen.append("written"))
    await journal.write(TURN, turns=1)
    assert (await store.rollouts.read_journal(uid), seen) == ([TURN], ["written"])
    assert journal.place(0).is_own


async def test_who_has_lost_the_claim_writes_nothing(store: Store) -> None:
    (uid,) = await submit(store)
    held = await claim(store, uid)
    journal = Journal(store, held, [], Drain())
    await store.rollouts.release(held, clean=True)
    await claim(store, uid, "another")
    with pytest.raises(ClaimLost):
        await journal.write(TURN, turns=1)
    assert await store.rollouts.read_journal(uid) == []
    with pytest.raises(ClaimLost):
        await journal.resend()


async def test_what_redis_lost_is_sent_again_with_the_next_record(store: Store) -> None:
    (uid,) = await submit(store)
    journal = Journal(store, await claim(store, uid), [], Drain())
    await journal.write(TURN, turns=1)
    await store.connection.redis.delete(f"rp:rollout:{uid}:journal")
    await journal.write(OBSERVATION, turns=1)
    assert await store.rollouts.read_journal(uid) == [TURN, OBSERVATION]
    await store.connection.redis.delete(f"rp:rollout:{uid}:journal")
    await journal.resend()
    assert await store.rollouts.read_journal(uid) == [TURN, OBSERVATION]


class SlowRollouts(MemoryRollouts):
    """A store whose first write waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.let_go = asyncio.Event(), asyncio.Event()

    async def journal(
        self, claim: Claim, records: Sequence[JournalRecord], *, turns: int, note: bytes = b"", two: bool = False
    ) -> None:
        """Keeps the records that are missing, in its time."""
        if not self.waits.is_set():
            self.waits.set()
            await self.let_go.wait()
        await super().journal(claim, records, turns=turns, note=note, two=two)


async def test_a_record_whose_write_still_waits_is_sent_when_redis_is_back() -> None:
    rollouts = SlowRollouts()
    journal = Journal(cast(Store, rollouts), claim_of(), [], Drain())
    writing = asyncio.create_task(journal.write(TURN, turns=1))
    await rollouts.waits.wait()
    await journal.resend()
    assert rollouts.records == [TURN]
    rollouts.let_go.set()
    await writing
    assert rollouts.records == [TURN]
