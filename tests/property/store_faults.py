"""What goes wrong in the store's state machine: deaths, broken data, time that passes, readers at a bad moment."""

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, rule
from tests.property.store_model import RolloutModel
from tests.property.store_world import WHICH, WORKERS, StoreWorld, one_of
from tests.support.batches import OWNER, declare_dead
from tests.support.journals import observation_record

from rolloutpool_common.capabilities.grading.annotations import Annotations
from rolloutpool_common.capabilities.harness.sessions import Sessions
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.capabilities.webhooks.pushes import Pushes
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.store import BatchDeleted, Claim, new_token
from rolloutpool_common.store.keys import split_uid, uid_of
from rolloutpool_common.store.reconciliation import MAX_CRASHES

LONG_AGO_MS = 1
"""A time of Redis' clock that has passed for all purposes."""


class StoreFaults(StoreWorld):
    """The rules for everything that nobody wants."""

    tickets = Bundle("tickets")
    claims = Bundle("claims")

    @rule(worker=st.sampled_from(list(WORKERS)))
    def condemn(self, worker: str) -> None:
        """A worker that lives is declared dead. It keeps its claims until they are taken back, and gets no more."""
        assert self.do(self.store.workers.condemn(self.ids[worker]))
        self.condemned.add(worker)
        if any(model.status == "running" and model.worker == self.ids[worker] for model in self.rollouts.values()):
            assert not self.do(self.store.workers.deregister(self.ids[worker]))
        # It has not noticed that yet, and goes on taking tickets.
        self.take_next(worker)

    @rule(worker=st.sampled_from(list(WORKERS)))
    def die(self, worker: str) -> None:
        """A worker ends, is declared dead, and another is started. So is each that was declared dead before."""
        gone = {worker, *self.condemned}
        ids = {self.ids[one] for one in gone}
        report = self.do(declare_dead(self.store, self.ids[worker]))
        mine = {uid: m for uid, m in self.rollouts.items() if m.status == "running" and m.worker in ids}
        assert report.requeued == len(mine)
        for uid, model in mine.items():
            model.crashes += 1
            model.status, model.token = "queued", None
            # A death before the first call leaves what was true before (release.lua).
            model.clean = model.clean and not model.called
            if model.crashes >= MAX_CRASHES:
                self.end_outside(uid, RolloutStatus.FAILED)
        assert not ids & set(self.raw.zrange("rp:workers", 0, -1))
        for one in gone:
            self.start_worker(one)

    @rule(worker=st.sampled_from(list(WORKERS)), about=st.sampled_from(["{}", "nonsense", '{"role": 7}']))
    def announce_badly(self, worker: str, about: str) -> None:
        """A worker of another build announces what nobody can read."""
        self.raw.hset(f"rp:worker:{self.ids[worker]}", "about", about)

    @rule(grades_late=st.booleans())
    def reconcile(self, grades_late: bool) -> None:
        """Time passes: what is delayed is due, and cancellations whose process died go on. So do graders' deadlines."""
        for uid in map(str, self.raw.zrange("rp:delayed", 0, -1)):
            self.raw.zadd("rp:delayed", {uid: LONG_AGO_MS})
        going_on = [str(batch_id) for batch_id in self.raw.smembers("rp:cancelling") & self.batches.keys()]
        for batch_id in going_on:
            self.raw.hset(f"rp:batch:{batch_id}", "cancelled_ms", LONG_AGO_MS)
        if grades_late:
            for uid in map(str, self.raw.zrange("rp:grading", 0, -1)):
                self.raw.zadd("rp:grading", {uid: LONG_AGO_MS})
        # The clock of leases has gone on, and its first seconds, in which nothing ends, are over.
        self.raw.hincrby("rp:served", "clock_ms", 1000)
        self.raw.hset("rp:served", "quiet_ms", 0)
        self.raw.hdel("rp:served", "seen_ms")
        assert self.do(self.store.reconciliation.run_once()).leader
        for batch_id, batch in self.batches.items():
            if batch_id in going_on:
                self.cancelled_all(batch)
            for uid, model in zip(batch.uids, batch.rollouts, strict=True):
                if model.overdue and model.kept is None and not model.ended:
                    self.end_outside(uid, RolloutStatus.EXPIRED)
            if batch.unread and not batch.over:
                self.cancelled_all(batch)
            if grades_late:
                for model in batch.late():
                    self.end_outside(batch.uids[batch.rollouts.index(model)], RolloutStatus.FAILED)

    @rule(which=WHICH)
    def pass_deadline(self, which: int) -> None:
        """The deadline of a rollout passes, and the reconciler has not looked yet."""
        with_deadline = [str(uid) for uid in self.raw.zrange("rp:deadlines", 0, -1)]
        if not with_deadline:
            return
        uid = one_of(with_deadline, which)
        batch_id, index = split_uid(uid) or ("", 0)
        self.raw.zadd("rp:deadlines", {uid: LONG_AGO_MS})
        self.raw.hset(f"rp:batch:{batch_id}:deadlines", str(index), LONG_AGO_MS)
        self.rollouts[uid].overdue = True

    @rule(which=WHICH)
    def begin_cancel(self, which: int) -> None:
        """A cancellation begins, and its process dies before it has ended a rollout."""
        still = [b for b, batch in self.batches.items() if not batch.over]
        if still:
            batch_id = one_of(still, which)
            self.script("begin_cancel", batch_id, "caller")
            self.batches[batch_id].cancelled = True

    @rule(claim=claims)
    def lose_the_tail(self, claim: Claim) -> None:
        """Redis lost what it had not synced; who runs the rollout sends it again with the next record."""
        model = self.running(claim)
        if model is None or not model.journal or model.broken:
            return
        self.raw.rpop(f"rp:rollout:{claim.uid}:journal")
        record = observation_record(claim.token)
        self.do(self.store.rollouts.journal(claim, [*model.journal, record], turns=1))
        self.progressed(model, record)

    @rule(which=WHICH)
    def go_astray(self, which: int) -> None:
        """A rollout is lost from all of its places, by a fault that nobody knows yet. The audit puts it back."""
        lost = [
            (uid, batch_id)
            for batch_id, batch in self.batches.items()
            for uid, rollout in zip(batch.uids, batch.rollouts, strict=True)
            if not rollout.ended and not rollout.waits_for_group and not rollout.stopped
        ]
        if not lost:
            return
        uid, batch_id = one_of(lost, which)
        model, index = self.rollouts[uid], int(uid.rpartition("-")[2])
        self.raw.srem(f"rp:worker:{model.worker}:claims", uid)
        self.raw.lrem(f"rp:batch:{batch_id}:outbox", 0, str(index))
        for place in ("published:default", "delayed", "suspects"):
            self.raw.zrem(f"rp:{place}", uid)
        found = self.do(self.store.reconciliation.strays.scan(batch_id, len(model.batch.uids)))
        assert (batch_id, index) in [(stray.batch_id, stray.rollout) for stray in found]

    @rule(claim=claims, old=st.booleans())
    def spoil_record(self, claim: Claim, old: bool) -> None:
        """A rollout's record is of an older version, which lacks fields, or nobody can read it."""
        model = self.running(claim)
        if model is None:
            return
        if old:
            self.raw.hdel(f"rp:rollout:{claim.uid}", "uncalled", "turns", "claimed")
            # Whether a call was noted is not known any more, so one may be unanswered.
            model.called = True
        elif model.journal:
            self.raw.lset(f"rp:rollout:{claim.uid}:journal", -1, "no record")
            model.broken = True

    @rule(claim=claims)
    def restore(self, claim: Claim) -> None:
        """Redis was started again and has forgotten nothing: the claim holds, or it was taken away rightly."""
        assert self.do(self.store.rollouts.restore(claim, None, turns=0)) == (self.running(claim) is not None)

    @rule(which=WHICH)
    def delete_while_read(self, which: int) -> None:
        """A batch is deleted while it is read, and while late tickets, cancels, records and annotations of it come.

        Whoever is told that this was all has all of it, nothing brings a rollout back, and none ends once more.
        """
        ended = [b for b, batch in self.batches.items() if batch.over]
        if not ended:
            return
        batch_id = one_of(ended, which)
        uids = set(self.batches[batch_id].uids)

        async def read() -> None:
            seen, cursor, complete = 0, "0", False
            try:
                while not complete:
                    items, cursor, complete = await self.store.batches.results(batch_id, cursor, 1)
                    seen += len(items)
                    if not items and not complete:
                        return
            except BatchDeleted:
                return
            assert seen == len(uids)

        async def claim(uid: str) -> None:
            answer: object = None
            while answer != "gone":
                answer = await self.store.rollouts.claim(uid, self.ids["w1"], WORKERS["w1"], token=new_token())
                assert answer in ("ended", "gone")

        async def look(uid: str) -> None:
            while (view := await self.store.rollouts.view(uid, OWNER)) is not None:
                assert view.result is not None

        async def cancel(uid: str) -> None:
            end, answer = RolloutEnd(RolloutStatus.CANCELLED, FinishReason.CANCELLED), ""
            while answer != "gone":
                answer = await self.store.rollouts.settle(*(split_uid(uid) or ("", 0)), end)
                assert answer in (self.rollouts[uid].status, "gone")

        async def annotate() -> None:
            while await self.store.batches.total(batch_id, None) is not None:
                await Annotations(self.store).append(batch_id, "r", {}, {0: {"a": [[1.0]]}}, max_bytes=10**6)

        async def retry_pushes() -> None:
            while await self.store.batches.total(batch_id, None) is not None:
                await Pushes(self.store).retry(batch_id, len(uids))

        async def end_session() -> None:
            while await Sessions(self.store).end(uid_of(batch_id, 0), SessionEnd()) != "gone":
                pass

        async def go_on(claim: Claim) -> None:
            while await self.store.batches.total(batch_id, None) is not None:
                assert not await self.store.rollouts.restore(claim, [], turns=0)

        async def all_at_once() -> None:
            frozen = (go_on(one) for one in self.claimed if one.batch_id == batch_id)
            others = (each(uid) for each in (claim, look, cancel) for uid in uids)
            delete = self.store.batches.delete(batch_id)
            await asyncio.gather(read(), annotate(), retry_pushes(), end_session(), *frozen, *others, delete)

        self.do(all_at_once())
        self.forget(batch_id)

    def running(self, claim: Claim) -> RolloutModel | None:
        """Returns the rollout if this claim on it holds."""
        model = self.rollouts.get(claim.uid)
        return model if model is not None and model.token == claim.token else None
