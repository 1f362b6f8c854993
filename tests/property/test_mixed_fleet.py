"""Workers of several builds come and go under random histories on a real Redis.

After each step each open rollout has exactly one owner of its next step, and only a worker that has what a rollout
names ever claimed it. At the end a worker that has everything comes, and gets all that is left by tickets alone.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.property.store_world import KEPT
from tests.support.batches import announce, beat, new_batch, result_of, uids_of
from tests.support.examples import examples
from tests.support.places import fault_in, places_of

from rolloutpool_common.capabilities.runs.steering import Runs
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import RELEASE, digest_of, spell
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, ClaimRefused, Store, Ticket
from rolloutpool_common.store.keys import DELAYED, split_uid, uid_of

T = TypeVar("T")
THINGS = ("maze", "chess")
WORKERS = {"plain": (), "m1": ("maze",), "m2": ("maze",), "c": ("chess",), "both": THINGS}
OWNER = "tests"
RUN = "r"


def named(thing: str | None) -> dict[str, Any]:
    """The own fields of a rollout that names this environment."""
    return {} if thing is None else {"environment": {"name": thing}}


class MixedFleet(RuleBasedStateMachine):
    """One Redis, emptied before each history."""

    url = ""
    tickets = Bundle("tickets")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.raw = redis.Redis.from_url(self.url, decode_responses=True)
        self.raw.flushall()
        self.store = Store.open(self.url)
        self.needs: dict[str, str | None] = {}
        """Open rollouts, and the environment that each names."""
        self.batches: list[str] = []
        self.there: set[str] = set()

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        """Runs a step."""
        return self.runner.run(step)

    @initialize()
    def begin(self) -> None:
        """Two builds are there."""
        for worker in ("plain", "m1"):
            self.come(worker)

    @rule(worker=st.sampled_from(list(WORKERS)))
    def come(self, worker: str) -> None:
        """A worker announces itself, perhaps once more."""
        self.do(announce(self.store, worker, environments=WORKERS[worker]))
        # A process that shuts down never takes work again; here it stands for the next one.
        self.do(beat(self.store, worker, running=0, tokenizers={}))
        self.there.add(worker)

    @rule(worker=st.sampled_from(list(WORKERS)), drains=st.booleans())
    def go(self, worker: str, drains: bool) -> None:
        """It leaves or begins to shut down, without claims."""
        if worker in self.there and not self.do(self.store.workers.claims(worker)):
            if drains:
                self.do(beat(self.store, worker, running=0, tokenizers={}, draining=True))
            else:
                self.do(self.store.workers.leave(worker))
            self.there.discard(worker)

    @rule()
    def look(self) -> None:
        """Somebody notes what the workers offer."""
        self.do(self.store.offers.look())

    @rule(things=st.lists(st.sampled_from([None, *THINGS]), min_size=1, max_size=4), run=st.sampled_from([None, RUN]))
    def submit(self, things: list[str | None], run: str | None) -> None:
        """A batch, whose rollouts may be alike."""
        batch = new_batch([named(thing) for thing in things], run=run)
        self.do(self.store.batches.submit(batch))
        self.batches.append(batch.batch_id)
        self.needs.update(zip(uids_of(batch), things, strict=True))

    @rule(target=tickets, limit=st.integers(1, 9), lost=st.booleans())
    def publish(self, limit: int, lost: bool) -> Any:
        """Tickets come out; those of an offer's queue are for workers that are suited. The broker may lose them."""
        taken = self.do(self.store.outbox.reserve(Priority.DEFAULT, limit))
        for ticket in taken:
            thing = self.needs[uid_of(ticket.batch_id, ticket.index)]
            suited = {
                digest_of(spell([RELEASE, *(f"environment:{t}" for t in has)]))
                for has in WORKERS.values()
                if thing in has
            }
            assert ticket.offer == "" or ticket.offer in suited
        return multiple(*([] if lost else taken))

    @rule(ticket=tickets, worker=st.sampled_from(list(WORKERS)), target=claims)
    def claim(self, ticket: Ticket, worker: str) -> Any:
        """A worker gets a ticket, perhaps an old one, perhaps one that is not for it."""
        uid = uid_of(ticket.batch_id, ticket.index)
        if worker not in self.there:
            return multiple()
        answer = self.do(self.store.rollouts.claim(uid, worker))
        if isinstance(answer, Claim):
            assert self.needs[uid] is None or self.needs[uid] in WORKERS[worker]
            return answer
        if answer is ClaimRefused.UNSUITED:
            assert self.needs[uid] not in (None, *WORKERS[worker])
        return multiple()

    @rule(claim=claims, ends=st.booleans(), delay=st.booleans())
    def end(self, claim: Claim, ends: bool, delay: bool) -> None:
        """A rollout ends, or goes back to the queue at once or later."""
        if self.raw.hget(f"rp:rollout:{claim.uid}", "token") != claim.token:
            return
        if ends:
            self.do(self.store.rollouts.finish(claim, result_of(claim)))
            del self.needs[claim.uid]
        elif delay:
            self.do(self.store.rollouts.give_back(claim, clean=True, counter="deferrals", delay_s=600))
            self.raw.zadd("rp:delayed", {claim.uid: 1})
        else:
            self.do(self.store.rollouts.release(claim, clean=True))

    @rule()
    def due(self) -> None:
        """The time of what is delayed has come."""
        delayed: Any = self.raw.zrange("rp:delayed", 0, -1, withscores=True)
        for uid, at in delayed:
            batch_id, index = split_uid(uid) or ("", 0)

            async def fall_due(batch_id: str = batch_id, index: int = index, at: float = at) -> None:
                await self.store.outbox._connection.script("requeue", batch_id, index, DELAYED, f"{at:.0f}", "")

            self.do(fall_due())

    @rule()
    def recover(self) -> None:
        """What was published and not claimed goes back, queue by queue."""
        later = self.do(self.store.outbox.now_ms()) + 1
        for offer in ("", *self.do(self.store.outbox.routes(Priority.DEFAULT))):
            self.do(self.store.outbox.lost(Priority.DEFAULT, later, offer=offer))

    @rule(pause=st.booleans())
    def steer(self, pause: bool) -> None:
        """The run is paused or resumed."""
        if pause:
            self.do(Runs(self.store).pause(OWNER, RUN, limit_s=3600))
        elif self.raw.exists(f"rp:steering:{OWNER}/{RUN}"):
            self.do(Runs(self.store).resume(OWNER, RUN))

    @rule(number=st.integers(0, 9))
    def cancel(self, number: int) -> None:
        """A batch is cancelled."""
        if self.batches:
            batch_id = self.batches[number % len(self.batches)]
            self.do(self.store.batches.cancel(batch_id))
            self.needs = {uid: thing for uid, thing in self.needs.items() if not uid.startswith(f"{batch_id}-")}

    @invariant()
    def each_open_rollout_has_one_owner(self) -> None:
        """By the table of places, and the audit agrees: it finds nothing to put back."""
        for uid in self.needs:
            batch_id, index = split_uid(uid) or ("", 0)
            fault = fault_in(places_of(self.raw, batch_id, index))
            assert fault is None, f"{uid}: {fault}"
        for batch_id in self.batches:
            assert self.do(self.store.reconciliation.strays.scan(batch_id, len(self.needs) or 1)) == []

    def teardown(self) -> None:
        """Whatever happened: a worker with everything gets all that is left, and what is deleted leaves no key."""
        try:
            self.steer(pause=False)
            self.come("both")
            for worker in WORKERS:
                for uid, token in self.do(self.store.workers.tokens(worker)).items():
                    self.do(self.store.rollouts.abandon(uid, token, WorkerRole.SHARED))
            for _ in range(4):
                self.due()
                self.recover()
                self.look()
                for ticket in self.do(self.store.outbox.reserve(Priority.DEFAULT, 5000)):
                    uid = uid_of(ticket.batch_id, ticket.index)
                    claim = self.do(self.store.rollouts.claim(uid, "both"))
                    if isinstance(claim, Claim):
                        self.do(self.store.rollouts.finish(claim, result_of(claim)))
                        del self.needs[uid]
            assert self.needs == {}
            for batch_id in self.batches:
                self.do(self.store.batches.delete(batch_id))
            self.do(self.store.outbox.reserve(Priority.DEFAULT, 5000))
            of_runs = ("rp:steering:", "rp:reserve:")
            kept = tuple(one.rstrip("*") for one in (*KEPT, "rp:offers", "rp:routes", "rp:routed:", *of_runs))
            assert [key for key in self.raw.scan_iter("rp:*") if not key.startswith(kept)] == []
        finally:
            self.do(self.store.close())
            self.raw.close()
            self.runner.close()


def test_a_mixed_fleet_loses_nothing_and_runs_nothing_where_it_cannot_run(redis_url: str) -> None:
    MixedFleet.url = redis_url
    run_machine(
        MixedFleet,
        settings=settings(
            max_examples=examples(15, 30),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
