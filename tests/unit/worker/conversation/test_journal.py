"""Records are replayed once each and in order; new ones are durable under the claim, or the claim is lost."""

import asyncio
from collections.abc import Sequence
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
    journal = Journal(store, await claim(store, uid), [TURN, OBSERVATION], Drain())
    assert [journal.replay(TurnRecord), journal.replay(ObservationRecord)] == [TURN, OBSERVATION]
    assert journal.replay(TurnRecord) is None
    assert not journal.beyond_inherited


async def test_a_record_of_another_kind_shows_that_the_agent_has_changed(store: Store) -> None:
    (uid,) = await submit(store)
    journal = Journal(store, await claim(store, uid), [TURN], Drain())
    with pytest.raises(StaleJournal, match="record 0 is TurnRecord, not ObservationRecord"):
        journal.replay(ObservationRecord)


async def test_a_written_record_is_durable_and_then_reported(store: Store) -> None:
    (uid,) = await submit(store)
    seen: list[str] = []
    journal = Journal(store, await claim(store, uid), [], Drain(), after_write=lambda: seen.append("written"))
    await journal.write(TURN, turns=1)
    assert (await store.rollouts.read_journal(uid), seen) == ([TURN], ["written"])
    assert journal.beyond_inherited


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
    await store._connection.redis.delete(f"rp:rollout:{uid}:journal")
    await journal.write(OBSERVATION, turns=1)
    assert await store.rollouts.read_journal(uid) == [TURN, OBSERVATION]
    await store._connection.redis.delete(f"rp:rollout:{uid}:journal")
    await journal.resend()
    assert await store.rollouts.read_journal(uid) == [TURN, OBSERVATION]


class SlowRollouts(MemoryRollouts):
    """A store whose first write waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.let_go = asyncio.Event(), asyncio.Event()

    async def journal(self, claim: Claim, records: Sequence[JournalRecord], *, turns: int) -> None:
        """Keeps the records that are missing, in its time."""
        if not self.waits.is_set():
            self.waits.set()
            await self.let_go.wait()
        await super().journal(claim, records, turns=turns)


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
