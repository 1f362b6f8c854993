"""The store under random histories on a real Redis, against a model that is plain Python (`store_model`).

After each step each open rollout has exactly one owner of its next step, by the table of places; each ended one was
delivered once with the result of who had the right to end it; and the counts agree. At the end everything can be
finished, and a deleted batch leaves no key behind.

The rules are in five parts: here is what trainers, workers and the reconciler do, in `store_attempts` tickets,
what else an attempt may do and leases, in `store_pushes` webhooks, in `store_usage` what owners hold, in
`store_faults` what goes wrong.
"""

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import MultipleResults, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.property.store_model import GROUP, BatchModel, RolloutModel
from tests.property.store_pushes import WEBHOOK
from tests.property.store_usage import StoreUsage
from tests.property.store_world import KEPT, KEYS, NAMES, WHICH, WORKERS, one_of
from tests.support.batches import OWNER, new_batch, result_of, uids_of
from tests.support.examples import examples
from tests.support.journals import turn_record
from tests.support.places import Place, fault_in, places_of

from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.capabilities.runs.steering import Runs
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.journal import JournalUnreadable
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import (
    BatchStillRunning,
    Claim,
    ClaimLost,
    IdempotencyKeyReused,
    SubmitLimits,
    Ticket,
    new_token,
)
from rolloutpool_common.store.keys import split_uid, uid_of
from rolloutpool_common.store.staging import size_of

LIMITS = SubmitLimits(new_bytes=5000)
"""All that limits these submits is Redis itself."""
ATTACHED = st.sampled_from([b"", b"what an engine says"])


class StoreMachine(StoreUsage):
    """One Redis, emptied before each history."""

    tickets, claims = StoreUsage.tickets, StoreUsage.claims

    @initialize(
        target=claims,
        n=st.integers(1, 3),
        graded=st.sampled_from(["", "", "alone", "group"]),
        run=st.sampled_from([None, "r"]),
        limited=st.booleans(),
        pushed=st.booleans(),
        attached=ATTACHED,
    )
    def begin(
        self, n: int, graded: str, run: str | None, limited: bool, pushed: bool, attached: bytes
    ) -> MultipleResults[Claim]:
        """Workers run a first batch, so that each history has something to happen to."""
        self.start_workers()
        self.submit(n, None, False, None, graded, run, limited, limited, None, pushed)
        claims = [*filter(None, [self.take_next(worker) for worker in ("w1", "w1", "w2")])]
        if attached:
            self.grade(claims[0], False, attached)
        return multiple(*claims)

    @rule(
        n=st.integers(1, 3),
        key=st.sampled_from([None, *KEYS]),
        other=st.booleans(),
        name=st.sampled_from([None, *NAMES]),
        graded=st.sampled_from(["", "", "alone", "group"]),
        run=st.sampled_from([None, "r"]),
        deadline=st.booleans(),
        leased=st.booleans(),
        trunk=st.sampled_from([None, b"{}"]),
        pushed=st.booleans(),
    )
    def submit(
        self,
        n: int,
        key: str | None,
        other: bool,
        name: str | None,
        graded: str,
        run: str | None,
        deadline: bool,
        leased: bool,
        trunk: bytes | None,
        pushed: bool,
    ) -> None:
        """A batch; the same key with the same content is the same batch, with another a conflict."""
        before = self.keys.get(key) if key else None
        new = new_batch(
            [*([{"rollout_id": name}] if name else [{}]), *[{}] * (n - 1)],
            key=key,
            digest="other" if other and before else "d",
            groups=[GROUP] * n if graded == "group" else None,
            deadline_s=3600 if deadline else None,
            asks={**({"grading": True} if graded else {}), **({"webhooks": WEBHOOK} if pushed else {})},
            run=run,
            lease_s=3600 if leased else None,
            trunk=trunk,
            batch_id=f"b{next(self.numbers):032x}",
        )
        if before is None:
            submitted = self.do(self.store.batches.submit(new, LIMITS))
            assert submitted == (new.batch_id, True)
            batch = BatchModel(uids_of(new), graded=graded, run=run, leased=leased, trunk=trunk, pushed=pushed)
            batch.paused, batch.size = run is not None and self.paused, size_of(new)
            batch.rollouts = [RolloutModel(batch) for _ in batch.uids]
            self.batches[new.batch_id] = batch
            self.ends.update(batches=1, accepted=n)
            self.rollouts.update(zip(batch.uids, batch.rollouts, strict=True))
            if key:
                self.keys[key] = new.batch_id
            if name:
                self.names[name] = batch.uids[0]
            if name in self.has_precancels:
                self.has_precancels.remove(name)
                self.end(self.names[name], RolloutStatus.CANCELLED, 0, None)
        elif other:
            with pytest.raises(IdempotencyKeyReused) as conflict:
                self.do(self.store.batches.submit(new, LIMITS))
            assert conflict.value.batch_id == before
        else:
            assert self.do(self.store.batches.submit(new, LIMITS)) == (before, False)

    @rule(target=claims, ticket=tickets, worker=st.sampled_from(list(WORKERS)), twice=st.booleans())
    def claim(self, ticket: Ticket, worker: str, twice: bool) -> MultipleResults[Claim]:
        """A ticket, perhaps an old one, perhaps with the answer lost and asked again."""
        claimed = self.claim_one(uid_of(ticket.batch_id, ticket.index), worker, twice)
        return multiple() if claimed is None else multiple(claimed)

    @rule(target=claims, worker=st.sampled_from(list(WORKERS)), n=st.integers(1, 3))
    def take(self, worker: str, n: int) -> MultipleResults[Claim]:
        """A worker gets the next tickets at once, as nearly always."""
        return multiple(*filter(None, [self.take_next(worker) for _ in range(n)]))

    @rule(target=claims, answer_lost=st.booleans(), company_first=st.booleans())
    def try_suspects(self, answer_lost: bool, company_first: bool) -> MultipleResults[Claim]:
        """An isolated worker takes the next suspect, if one waits. None may be asked twice, so each is tried alone."""
        worker = self.ids["w3"]
        suspects = {
            uid: model for uid, model in self.rollouts.items() if model.status == "queued" and model.crashes >= 2
        }
        can_go_on = {uid for uid, model in suspects.items() if not model.batch.paused}
        assert self.do(self.store.trials.may_start(self.ids["w1"])) == bool(can_go_on)
        waiting = {uid for uid in can_go_on if not suspects[uid].stopped and "w3" not in self.condemned}
        tokens = [new_token(), new_token()]
        for _ in range(1 + answer_lost):
            taken = self.do(self.store.trials.take(worker, self.ids["w1"], tokens, company_first=company_first))
        assert len(taken) == min(len(waiting), 1)
        if not taken:
            return multiple()
        ((uid, token),) = taken
        assert uid in waiting
        model = self.rollouts[uid]
        answer = self.do(self.store.rollouts.claim(uid, worker, WorkerRole.ISOLATED, token=token))
        assert isinstance(answer, Claim)
        model.attempts += 1
        assert (answer.attempt, answer.crashes) == (model.attempts, model.crashes)
        model.status, model.token, model.worker, model.called = "running", token, worker, False
        return multiple(answer)

    @rule(claim=claims, answer_lost=st.booleans())
    def journal(self, claim: Claim, answer_lost: bool) -> None:
        """One more record, by who may and by who may not any more."""
        model, record = self.rollouts.get(claim.uid), turn_record(claim.token)
        if model is None or model.token != claim.token:
            with pytest.raises(ClaimLost):
                self.do(self.store.rollouts.journal(claim, [record], turns=1))
        elif model.kept is None:
            for _ in range(1 + answer_lost):
                self.do(self.store.rollouts.journal(claim, [*model.journal, record], turns=1))
            self.progressed(model, record)

    @rule(claim=claims, answer_lost=st.booleans(), attached=ATTACHED)
    def grade(self, claim: Claim, answer_lost: bool, attached: bytes) -> None:
        """The conversation is complete; its worker grades it, or gives it up until its group is complete."""
        model = self.rollouts.get(claim.uid)
        if model is None or not model.batch.graded or model.token != claim.token:
            return
        group = GROUP if model.batch.graded == "group" else None
        if group is not None and model.kept is not None:
            return
        for _ in range(1 + answer_lost):
            kept = KeptRollouts(self.store).begin(
                claim, result_of(claim), seconds=600, group=group, attachments=attached
            )
            answer = self.do(kept)
            assert answer == ("ok" if group is None else "held")
        if model.kept is None:
            model.kept = (claim.attempt, claim.worker_id)
            model.journal, model.broken, model.crashes, model.clean = [], False, 0, True
        if group is not None:
            model.status, model.token = "queued", None
            model.batch.hold(model)

    @rule(
        claim=claims,
        status=st.sampled_from([RolloutStatus.COMPLETED, RolloutStatus.FAILED]),
        answer_lost=st.booleans(),
        attached=ATTACHED,
    )
    def finish(self, claim: Claim, status: RolloutStatus, answer_lost: bool, attached: bytes = b"") -> None:
        """A result, from who may and who may not any more."""
        model, result = self.rollouts.get(claim.uid), result_of(claim, status=status)
        if model is not None and model.token == claim.token:
            # What belongs to a conversation that was graded is kept with it.
            attached = attached if model.kept is None else b""
            for _ in range(1 + answer_lost):
                self.do(self.store.rollouts.finish(claim, result, attachments=attached))
            self.end(claim.uid, status, claim.attempt, claim.worker_id)
        elif model is None or model.status != status:
            with pytest.raises(ClaimLost):
                self.do(self.store.rollouts.finish(claim, result))
        else:
            # Ended alike before, perhaps by this very call: it may not change what is stored.
            self.do(self.store.rollouts.finish(claim, result))

    @rule(claim=claims, clean=st.booleans(), retry=st.booleans(), delay_s=st.sampled_from([0.0, 600.0]))
    def release(self, claim: Claim, clean: bool, retry: bool, delay_s: float) -> None:
        """A drain, or a retry after a failure of the infrastructure, now or later."""
        model = self.rollouts.get(claim.uid)
        mine = model is not None and model.token == claim.token
        if retry:
            step = self.store.rollouts.give_back(claim, clean=clean, counter="retries", delay_s=delay_s)
        else:
            step = self.store.rollouts.release(claim, clean=clean)
        assert self.do(step) == mine
        if mine:
            assert model is not None
            model.status, model.token, model.clean = "queued", None, clean
            model.retries += retry
            if retry and claim.role is WorkerRole.ISOLATED:
                model.crashes = 0

    @rule(name=st.sampled_from(NAMES))
    def precancel(self, name: str) -> None:
        """A cancel by name, perhaps before anybody has submitted it."""
        uid = self.names.get(name)
        assert self.do(self.store.rollouts.precancel(name, OWNER)) == uid
        if uid is None:
            self.has_precancels.add(name)

    @rule(pause=st.booleans())
    def steer(self, pause: bool) -> None:
        """The run is paused or resumed."""
        if pause:
            self.do(Runs(self.store).pause(OWNER, "r", limit_s=600))
        elif self.paused:
            self.do(Runs(self.store).resume(OWNER, "r"))
        self.paused = pause
        for batch in self.batches.values():
            batch.paused = pause and batch.run is not None

    @rule(which=WHICH, expired=st.booleans())
    def settle(self, which: int, expired: bool) -> None:
        """The trainer cancels a rollout, or its deadline passes, wherever it is."""
        if not self.rollouts:
            return
        uid = one_of(list(self.rollouts), which)
        model, split = self.rollouts[uid], split_uid(uid)
        assert split is not None
        status = RolloutStatus.EXPIRED if expired else RolloutStatus.CANCELLED
        reason = FinishReason.DEADLINE if expired else FinishReason.CANCELLED
        answer = self.do(self.store.rollouts.settle(*split, RolloutEnd(status, reason)))
        assert answer == (model.status if model.ended else "ok")
        if not model.ended:
            self.end_outside(uid, status)

    @rule(which=WHICH)
    def cancel_batch(self, which: int) -> None:
        """All that has not ended, ends."""
        if not self.batches:
            return
        batch_id = one_of(list(self.batches), which)
        still = [uid for uid in self.batches[batch_id].uids if not self.rollouts[uid].ended]
        assert self.do(self.store.batches.cancel(batch_id)) == len(still)
        self.cancelled_all(self.batches[batch_id])

    @rule(which=WHICH)
    def delete(self, which: int) -> None:
        """Only what has ended can be deleted, and nothing of it stays. Who reads it meanwhile is not told a half."""
        if not self.batches:
            return
        batch_id = one_of(list(self.batches), which)
        if not self.batches[batch_id].over:
            with pytest.raises(BatchStillRunning):
                self.do(self.store.batches.delete(batch_id))
            return
        self.forget(batch_id)

    @invariant()
    def each_open_rollout_has_one_owner(self) -> None:
        """The table of places holds, and agrees with the model."""
        for batch_id, batch in self.batches.items():
            for index, rollout in enumerate(batch.rollouts):
                places = places_of(self.raw, batch_id, index)
                if rollout.ended:
                    assert not places & {Place.RUNNING, Place.PUBLISHED, Place.DELAYED, Place.SUSPECTS, Place.HELD}
                    continue
                assert fault_in(places) is None, (batch_id, index, places)
                assert (Place.RUNNING in places) == (rollout.status == "running")
                assert (Place.HELD in places) == rollout.waits_for_group
            # The audit agrees: it finds nothing to put back.
            assert self.do(self.store.reconciliation.strays.scan(batch_id, len(batch.uids))) == []
        assert int(self.raw.get("rp:open") or 0) == sum(not model.ended for model in self.rollouts.values())
        totals = self.raw.hgetall("rp:totals")
        assert {name: int(totals.get(name, 0)) for name in self.ends} == self.ends

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        """What readers are told."""
        for batch_id, batch in self.batches.items():
            for uid, model in zip(batch.uids, batch.rollouts, strict=True):
                view = self.do(self.store.rollouts.view(uid, OWNER))
                assert view is not None
                assert (view.status, view.attempt) == (model.shown, model.attempts)
                if model.broken and not model.ended:
                    with pytest.raises(JournalUnreadable):
                        self.do(self.store.rollouts.read_journal(uid))
                else:
                    kept = self.do(self.store.rollouts.read_journal(uid))
                    assert kept == ([] if model.ended else model.journal)
            assert self.do(self.store.rollouts.trunk(batch_id)) == batch.trunk
            self.delivered_once(batch_id, batch)

    def delivered_once(self, batch_id: str, batch: BatchModel) -> None:
        """What a reader of the batch gets, and what its status says."""
        page = self.do(self.store.batches.results(batch_id, "0", 100))
        results: dict[str, Any] = {result["uid"]: result for _, data in page.items for result in [orjson.loads(data)]}
        assert len(results) == len(page.items)
        ended = {uid: self.rollouts[uid] for uid in batch.uids if self.rollouts[uid].ended}
        assert results.keys() == ended.keys()
        for uid, model in ended.items():
            found = {name: results[uid][name] for name in ("status", "attempt", "worker")}
            assert found == model.result
        assert page.complete == (len(ended) == len(batch.uids))
        status = self.do(self.store.batches.status(batch_id, OWNER))
        assert status is not None
        counted = {name: n for name, n in status.counts.items() if n}
        expected: dict[RolloutStatus, int] = {}
        for model in batch.rollouts:
            expected[model.shown] = expected.get(model.shown, 0) + 1
        assert counted == expected

    def teardown(self) -> None:
        """Whatever happened: what is open can be finished, and what is deleted is gone."""
        try:
            self.finish_all()
            for batch_id in list(self.batches):
                self.forget(batch_id)
            left = [key for key in self.raw.scan_iter("rp:*") if self.raw.ttl(key) < 0]
            unbounded = [key for key in left if not any(map(key.startswith, (k.rstrip("*") for k in KEPT)))]
            assert unbounded == []
        finally:
            self.close()

    def finish_all(self) -> None:
        """Ends what is open in the ordinary way."""
        for worker in WORKERS:
            self.die(worker)
        self.steer(pause=False)
        self.recover()
        self.reconcile(grades_late=True)
        # Before they are claimed here, which needs no ticket and would hide that one is nowhere.
        self.each_open_rollout_has_one_owner()
        for uid, model in self.rollouts.items():
            if not model.ended:
                claim = self.claim_one(uid, "w3")
                assert claim is not None
                self.finish(claim, RolloutStatus.COMPLETED, False)
        self.each_open_rollout_has_one_owner()
        self.everything_is_as_it_should_be()


def test_the_store_does_what_its_model_does(redis_url: str) -> None:
    StoreMachine.url = redis_url
    calm = settings(deadline=None, suppress_health_check=list(HealthCheck))
    run_machine(StoreMachine, settings=settings(calm, max_examples=examples(25, 60), stateful_step_count=40))
