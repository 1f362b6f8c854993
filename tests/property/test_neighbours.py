"""No owner pays for another: one floods the pool with rollouts that turn out large, beside one that goes on as ever.

The scripts run on fakeredis. Its memory is added up here: what batches hold, and the journals of what runs. Redis would
refuse every write past its limit, of everybody; so the sum must never get there.
"""

import asyncio

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.batches import claim, new_batch, result_of, uids_of
from tests.support.examples import examples
from tests.support.fake_store import fake_store
from tests.support.journals import turn_record

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import Claim, NewBatch, NoRoom, OverQuota, RefusalCause, Store, SubmitLimits, TooManyOpen
from rolloutpool_common.store.keys import uid_of
from rolloutpool_common.store.usage import OwnerUsage, PoolUsage, room_of

LIMIT = 400_000
NEW = 12_000
"""Reserve of a rollout of a new run, and the most that one takes here."""
SLOTS = 4
SHORT, LONG = 300, 9000
FLOOD, OTHER = "flood", "other"


class Pool:
    """A store, its worker, and the memory that its Redis would use."""

    def __init__(self) -> None:
        self.store: Store = fake_store()
        self.open: dict[str, NewBatch] = {}
        self.ended: set[str] = set()
        self.accepted = 0
        self.most = 0

    async def memory(self, running: int = 0) -> int:
        used = (await self.store.usage.read()).total.bytes + running
        self.most = max(self.most, used)
        assert used <= LIMIT, "Redis refuses the writes of everybody"
        return used

    async def submit(self, owner: str, rollouts: int) -> RefusalCause | None:
        new = new_batch(rollouts, owner=owner, run="r")
        within = SubmitLimits(new_bytes=NEW, memory_bytes=await self.memory(), memory_limit_bytes=LIMIT)
        try:
            await self.store.batches.submit(new, within)
        except OverQuota as over:
            return over.cause
        except (NoRoom, TooManyOpen):
            return RefusalCause.MEMORY
        self.open[new.batch_id] = new
        self.accepted += rollouts
        return None

    async def balance(self) -> None:
        """As the leader does."""
        usage = await self.store.usage.read()
        usage = PoolUsage(usage.open, usage.total, usage.owners, SLOTS)
        room = room_of(usage, memory=await self.memory(), limit=LIMIT, new_bytes=NEW)
        await self.store.usage.set_room(SLOTS, room)

    async def work(self, size: int) -> int:
        """Runs what is published, all at once; the rollouts of the flood take so many bytes. Returns how many ran."""
        tickets = await self.store.outbox.reserve(Priority.DEFAULT, SLOTS)
        claims: list[tuple[Claim, str]] = []
        running = 0
        for ticket in tickets:
            held = await claim(self.store, uid_of(ticket.batch_id, ticket.index))
            takes = size if self.open[ticket.batch_id].owner == FLOOD else SHORT
            said = "".join(chr(0x4E00 + (i * 7919) % 20_000) for i in range(takes // 3))
            await self.store.rollouts.journal(held, [turn_record(said)], turns=1)
            running += takes
            claims.append((held, said))
            await self.memory(running)
        for held, said in claims:
            await self.store.rollouts.finish(held, result_of(held, metadata={"said": said}))
            assert held.uid not in self.ended
            self.ended.add(held.uid)
        await self.memory()
        return len(claims)

    async def purge(self, owner: str) -> int:
        """Deletes an owner's batches that have ended; returns how many."""
        over = [one for one in self.open.values() if one.owner == owner and self.ended.issuperset(uids_of(one))]
        for batch in over:
            await self.store.batches.delete(batch.batch_id)
            del self.open[batch.batch_id]
        return len(over)


async def flooded(waves: list[int], taught: int) -> None:
    """A flood in waves, whose rollouts are long after so many short ones have taught the pool a low reserve."""
    pool = Pool()
    while len(pool.ended) < taught:
        assert await pool.submit(FLOOD, 20) is None
        while await pool.work(SHORT):
            pass
        await pool.purge(FLOOD)
    for rollouts in waves:
        # As much as it gets in, as batches of any size.
        while (refusal := await pool.submit(FLOOD, rollouts)) is None:
            pass
        assert refusal in (RefusalCause.SHARE_BYTES, RefusalCause.MEMORY)
        for _ in range(12):
            # Who holds little is never refused because of the other one, and never waits for it.
            assert await pool.submit(OTHER, 2) is None
            await pool.balance()
            await pool.work(LONG)
            assert await pool.purge(OTHER) == 1
    # Nothing that was accepted is lost: what waits goes on as its owner makes room.
    for _ in range(10_000):
        await pool.balance()
        if not await pool.work(LONG) and not await pool.purge(FLOOD):
            break
    assert len(pool.ended) == pool.accepted
    assert await pool.store.usage.read() == PoolUsage(0, OwnerUsage(), {}, SLOTS)
    await pool.store.close()


@settings(max_examples=examples(1, 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(waves=st.lists(st.integers(3, 12), min_size=2, max_size=4), taught=st.sampled_from([0, 240]))
@example(waves=[6, 3, 3], taught=240)
def test_a_flood_that_turns_out_long_harms_nobody_but_itself(waves: list[int], taught: int) -> None:
    asyncio.run(flooded(waves, taught))
