"""How tickets come to workers, what these do beside their journal, and what ends a batch from outside.

These are rules of the store's machine. A worker notes its first call, begins anew, or stops without a result. A
trainer stops reading, or reads again.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import MultipleResults, multiple, rule
from tests.property.store_faults import LONG_AGO_MS, StoreFaults
from tests.property.store_world import WHICH, one_of
from tests.support.batches import OWNER
from tests.support.places import Place, places_of

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, ClaimLost, Ticket
from rolloutpool_common.store.keys import split_uid, uid_of
from rolloutpool_common.store.rollouts import MAX_LOSSES


class StoreAttempts(StoreFaults):
    """The rules for tickets, attempts and leases."""

    tickets, claims = StoreFaults.tickets, StoreFaults.claims

    @rule(target=tickets, limit=st.integers(1, 4), lost=st.booleans())
    def publish(self, limit: int, lost: bool) -> MultipleResults[Ticket]:
        """Tickets come out of the outboxes; the broker may lose them all."""
        ready = [uid for uid in self.rollouts if self.is_next(uid)]
        taken = self.do(self.store.outbox.reserve(Priority.DEFAULT, limit))
        assert len(taken) == min(limit, len(ready))
        for ticket in taken:
            model = self.rollouts[uid_of(ticket.batch_id, ticket.index)]
            assert model.status == "queued"
            assert not model.batch.paused
        return multiple() if lost else multiple(*taken)

    @rule()
    def recover(self) -> None:
        """What was published and not claimed goes back into the outboxes."""
        published = self.raw.zcard("rp:published:default")
        assert self.do(self.store.outbox.lost(Priority.DEFAULT, self.do(self.store.outbox.now_ms()) + 1)) == published
        assert not self.raw.exists("rp:published:default")

    def is_next(self, uid: str) -> bool:
        """Whether a rollout stands in its outbox and nowhere else, and its turn may come."""
        model, split = self.rollouts[uid], split_uid(uid)
        assert split is not None
        if model.batch.paused or model.ended:
            return False
        return places_of(self.raw, *split) - {Place.CANCELLING, Place.OVERDUE} == {Place.OUTBOX}

    @rule(claim=claims)
    def note_a_call(self, claim: Claim) -> None:
        """The first model call is noted before it is made; who has lost the claim may not make it."""
        model = self.running(claim)
        if model is None:
            with pytest.raises(ClaimLost):
                self.do(self.store.model_calls.note(claim))
        else:
            self.do(self.store.model_calls.note(claim))
            model.called = True

    @rule(claim=claims)
    def begin_anew(self, claim: Claim) -> None:
        """The journal is thrown away by who runs the rollout, and by nobody else."""
        model = self.running(claim)
        if model is not None and model.kept is not None:
            return
        if model is None:
            with pytest.raises(ClaimLost):
                self.do(self.store.rollouts.restart(claim))
            return
        self.do(self.store.rollouts.restart(claim))
        model.journal, model.broken, model.clean = [], False, True

    @rule(claim=claims, clean=st.booleans(), times=st.sampled_from([1, 1, MAX_LOSSES]))
    def abandon(self, claim: Claim, clean: bool, times: int) -> None:
        """Workers stop without a result, by a defect. After so many times the rollout fails."""
        for _ in range(times):
            model = self.running(claim)
            abandoned = self.do(self.store.rollouts.abandon(claim.uid, claim.token, claim.role, clean=clean))
            assert abandoned == (model is not None)
            if model is None:
                return
            model.losses += 1
            model.status, model.token = "queued", None
            model.clean = clean if model.called else model.clean
            if claim.role is WorkerRole.ISOLATED:
                model.crashes = 0
            if model.losses >= MAX_LOSSES:
                self.end_outside(claim.uid, RolloutStatus.FAILED)
            if times == 1 or model.ended or (again := self.claim_one(claim.uid, "w3")) is None:
                return
            claim = again

    @rule(which=WHICH)
    def stop_reading(self, which: int) -> None:
        """Nobody has read a batch for as long as its lease lasts, and the reconciler has not looked yet."""
        leased = [str(batch_id) for batch_id in self.raw.zrange("rp:leases", 0, -1)]
        assert set(leased) == {b for b, batch in self.batches.items() if batch.leased and not batch.over}
        if leased:
            batch_id = one_of(leased, which)
            self.raw.zadd("rp:leases", {batch_id: LONG_AGO_MS})
            self.batches[batch_id].unread = True

    @rule(which=WHICH)
    def read(self, which: int) -> None:
        """The owner of a batch reads it, which renews its lease."""
        if self.batches:
            batch_id = one_of(list(self.batches), which)
            assert self.do(self.store.leases.is_held_by(batch_id, OWNER)) == self.batches[batch_id].leased
            self.do(self.store.leases.renew(batch_id))
            self.batches[batch_id].unread = False
