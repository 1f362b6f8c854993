"""The store under random histories on a real Redis, against a model that is plain Python.

After each step each rollout is where the model has it, a queued one can be found by somebody (outbox, published,
delayed or suspects), each ended one was delivered once with the result of who had the right to end it, and the counts
agree. At the end everything can be finished, and a deleted batch leaves no key behind.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.support.batches import OWNER, declare_dead, new_batch, result_of, uids_of
from tests.support.journals import observation_record, turn_record

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import (
    BatchStillRunning,
    Claim,
    ClaimLost,
    ClaimRefused,
    IdempotencyKeyReused,
    Store,
    Ticket,
    new_token,
)
from rolloutpool_common.store.keys import split_uid, uid_of
from rolloutpool_common.store.reconciliation import MAX_CRASHES

T = TypeVar("T")
WORKERS = {"w1": WorkerRole.SHARED, "w2": WorkerRole.SHARED, "w3": WorkerRole.ISOLATED}
KEYS = ("first", "second")
NAMES = ("a", "b")
KEPT = (
    *("rp:finished", "rp:leader", "rp:totals", "rp:workers", "rp:worker:*", "rp:open", "rp:dead", "rp:epoch"),
    *("rp:schema", "rp:isolated", "rp:trials", "rp:condemned"),
)
"""What is bounded by itself, whatever was submitted."""


@dataclass
class Model:
    """One rollout."""

    status: str = "queued"
    token: str | None = None
    worker: str = ""
    attempts: int = 0
    crashes: int = 0
    """Since its journal grew."""
    retries: int = 0
    clean: bool = True
    called: bool = False
    """Whether its claim has a record in the journal; without one, no model call was noted under it."""
    journal: list[JournalRecord] = field(default_factory=list)
    result: dict[str, Any] | None = None
    """What must be delivered: attempt and worker of who ended it."""

    @property
    def ended(self) -> bool:
        """For good."""
        return self.status not in ("queued", "running")


class StoreMachine(RuleBasedStateMachine):
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
        self.rollouts: dict[str, Model] = {}
        self.batches: dict[str, list[str]] = {}
        self.keys: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.has_precancels: set[str] = set()
        self.number = 0

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        """Runs a step."""
        return self.runner.run(step)

    @initialize()
    def begin(self) -> None:
        """All workers are there."""
        for worker in WORKERS:
            self.announce(worker)

    def announce(self, worker: str) -> None:
        """Makes a worker known."""
        about: dict[str, Any] = {"tools": [], "agents": [], "termination_strategies": [], "tokenizers": {}}
        self.do(
            self.store.workers.announce(worker, role=WORKERS[worker], host="h", pid=1, slots=1, versions={}, **about)
        )

    @rule(
        n=st.integers(1, 3),
        key=st.sampled_from([None, *KEYS]),
        other=st.booleans(),
        name=st.sampled_from([None, *NAMES]),
    )
    def submit(self, n: int, key: str | None, other: bool, name: str | None) -> None:
        """A batch; the same key with the same content is the same batch, with another a conflict."""
        before = self.keys.get(key) if key else None
        named = [{"rollout_id": name}] if name else [{}]
        new = new_batch([*named, *[{}] * (n - 1)], key=key, digest="other" if other and before else "d")
        if before is None:
            submitted = self.do(self.store.batches.submit(new))
            assert submitted == (new.batch_id, True)
            self.batches[new.batch_id] = uids_of(new)
            self.rollouts.update({uid: Model() for uid in uids_of(new)})
            if key:
                self.keys[key] = new.batch_id
            if name:
                self.names[name] = uids_of(new)[0]
            if name in self.has_precancels:
                self.has_precancels.remove(name)
                self.end(self.names[name], RolloutStatus.CANCELLED, 0, None)
        elif other:
            with pytest.raises(IdempotencyKeyReused) as conflict:
                self.do(self.store.batches.submit(new))
            assert conflict.value.batch_id == before
        else:
            assert self.do(self.store.batches.submit(new)) == (before, False)

    @rule(target=tickets, limit=st.integers(1, 4), lost=st.booleans())
    def publish(self, limit: int, lost: bool) -> list[Ticket]:
        """Tickets come out of the outboxes; the broker may lose them all."""
        taken = self.do(self.store.outbox.reserve(Priority.DEFAULT, limit))
        assert len(taken) <= limit
        for ticket in taken:
            assert self.rollouts[uid_of(ticket.batch_id, ticket.index)].status == "queued"
        return [] if lost else taken

    @rule()
    def recover(self) -> None:
        """What was published and not claimed goes back into the outboxes."""
        self.do(self.store.outbox.lost(Priority.DEFAULT, self.do(self.store.outbox.now_ms()) + 1))

    @rule(target=claims, tickets=tickets, worker=st.sampled_from(list(WORKERS)), twice=st.booleans())
    def claim(self, tickets: list[Ticket], worker: str, twice: bool) -> Claim | None:
        """A ticket, perhaps an old one, perhaps with the answer lost and asked again."""
        if not tickets:
            return None
        uid = uid_of(tickets[0].batch_id, tickets[0].index)
        return self.claim_one(uid, worker, twice)

    def claim_one(self, uid: str, worker: str, twice: bool = False) -> Claim | None:
        """Makes the claim that the model says, or none."""
        model, token = self.rollouts.get(uid), new_token()
        answer = self.do(self.store.rollouts.claim(uid, worker, WORKERS[worker], token=token))
        if twice and isinstance(answer, Claim):
            again = self.do(self.store.rollouts.claim(uid, worker, WORKERS[worker], token=token))
            assert isinstance(again, Claim)
            assert again.attempt == answer.attempt
        if model is None:
            assert answer == ClaimRefused("gone")
        elif model.ended:
            assert answer == ClaimRefused("ended")
        elif model.status == "running" or (model.crashes >= 2 and WORKERS[worker] is WorkerRole.SHARED):
            assert answer == ClaimRefused("taken")
        else:
            assert isinstance(answer, Claim)
            model.attempts += 1
            found = (answer.attempt, answer.crashes, answer.retries, answer.journal_length, answer.clean)
            assert found == (model.attempts, model.crashes, model.retries, len(model.journal), model.clean)
            model.status, model.token, model.worker, model.called = "running", token, worker, False
            return answer
        return None

    @rule(target=claims, answer_lost=st.booleans(), company_first=st.booleans())
    def try_suspects(self, answer_lost: bool, company_first: bool) -> Claim | None:
        """An isolated worker takes the next suspect, if one waits. None may be asked twice, so each is tried alone."""
        waiting = {uid for uid, model in self.rollouts.items() if model.status == "queued" and model.crashes >= 2}
        tokens = [new_token(), new_token()]
        for _ in range(1 + answer_lost):
            taken = self.do(self.store.trials.take("w3", "w1", tokens, company_first=company_first))
        assert len(taken) == min(len(waiting), 1)
        if not taken:
            return None
        ((uid, token),) = taken
        assert uid in waiting
        model = self.rollouts[uid]
        answer = self.do(self.store.rollouts.claim(uid, "w3", WORKERS["w3"], token=token))
        assert isinstance(answer, Claim)
        model.attempts += 1
        assert (answer.attempt, answer.crashes) == (model.attempts, model.crashes)
        model.status, model.token, model.worker, model.called = "running", token, "w3", False
        return answer

    @rule(claim=claims, answer_lost=st.booleans())
    def journal(self, claim: Claim | None, answer_lost: bool) -> None:
        """One more record, by who may and by who may not any more."""
        if claim is None:
            return
        model, record = self.rollouts.get(claim.uid), turn_record(claim.token)
        if model is None or model.token != claim.token:
            with pytest.raises(ClaimLost):
                self.do(self.store.rollouts.journal(claim, [record], turns=1))
            return
        for _ in range(1 + answer_lost):
            self.do(self.store.rollouts.journal(claim, [*model.journal, record], turns=1))
        model.journal.append(record)
        model.called = True
        model.crashes = 0

    @rule(claim=claims)
    def lose_the_tail(self, claim: Claim | None) -> None:
        """Redis lost what it had not synced; who runs the rollout sends it again with the next record."""
        model = None if claim is None else self.rollouts.get(claim.uid)
        if claim is None or model is None or model.token != claim.token or not model.journal:
            return
        self.raw.rpop(f"rp:rollout:{claim.uid}:journal")
        record = observation_record(claim.token)
        self.do(self.store.rollouts.journal(claim, [*model.journal, record], turns=1))
        model.journal.append(record)
        model.called = True
        model.crashes = 0

    @rule(
        claim=claims, status=st.sampled_from([RolloutStatus.COMPLETED, RolloutStatus.FAILED]), answer_lost=st.booleans()
    )
    def finish(self, claim: Claim | None, status: RolloutStatus, answer_lost: bool) -> None:
        """A result, from who may and who may not any more."""
        if claim is None:
            return
        model, result = self.rollouts.get(claim.uid), result_of(claim, status=status)
        if model is not None and model.token == claim.token:
            for _ in range(1 + answer_lost):
                self.do(self.store.rollouts.finish(claim, result))
            self.end(claim.uid, status, claim.attempt, claim.worker_id)
        elif model is None or model.status != status:
            with pytest.raises(ClaimLost):
                self.do(self.store.rollouts.finish(claim, result))
        else:
            # Ended alike before, perhaps by this very call: it may not change what is stored.
            self.do(self.store.rollouts.finish(claim, result))

    @rule(claim=claims, clean=st.booleans(), retry=st.booleans())
    def release(self, claim: Claim | None, clean: bool, retry: bool) -> None:
        """A drain, or a retry after a failure of the infrastructure."""
        if claim is None:
            return
        model = self.rollouts.get(claim.uid)
        mine = model is not None and model.token == claim.token
        if retry:
            step = self.store.rollouts.give_back(claim, clean=clean, counter="retries", delay_s=0)
        else:
            step = self.store.rollouts.release(claim, clean=clean)
        assert self.do(step) == mine
        if mine:
            assert model is not None
            model.status, model.token, model.clean = "queued", None, clean
            model.retries += retry
            if retry and claim.role is WorkerRole.ISOLATED:
                model.crashes = 0

    @rule(worker=st.sampled_from(list(WORKERS)))
    def die(self, worker: str) -> None:
        """A worker ends, is declared dead, and is started again."""
        report = self.do(declare_dead(self.store, worker))
        mine = {
            uid: model for uid, model in self.rollouts.items() if model.status == "running" and model.worker == worker
        }
        assert report.requeued == len(mine)
        for uid, model in mine.items():
            model.crashes += 1
            model.status, model.token = "queued", None
            # A death before the first call leaves what was true before (release.lua).
            model.clean = model.clean and not model.called
            if model.crashes >= MAX_CRASHES:
                self.end(uid, RolloutStatus.FAILED, model.attempts, None)
        self.announce(worker)

    @rule(name=st.sampled_from(NAMES))
    def precancel(self, name: str) -> None:
        """A cancel by name, perhaps before anybody has submitted it."""
        uid = self.names.get(name)
        assert self.do(self.store.rollouts.precancel(name, OWNER)) == uid
        if uid is None:
            self.has_precancels.add(name)

    @rule(claim=claims)
    def restore(self, claim: Claim | None) -> None:
        """Redis was started again and has forgotten nothing: the claim holds, or it was taken away rightly."""
        if claim is not None:
            model = self.rollouts.get(claim.uid)
            mine = model is not None and model.token == claim.token
            assert self.do(self.store.rollouts.restore(claim, [], turns=0)) == mine

    @rule(data=st.data(), expired=st.booleans())
    def settle(self, data: st.DataObject, expired: bool) -> None:
        """The trainer cancels a rollout, or its deadline passes, wherever it is."""
        if not self.rollouts:
            return
        uid = data.draw(st.sampled_from(list(self.rollouts)))
        model, split = self.rollouts[uid], split_uid(uid)
        assert split is not None
        status = RolloutStatus.EXPIRED if expired else RolloutStatus.CANCELLED
        reason = FinishReason.DEADLINE if expired else FinishReason.CANCELLED
        answer = self.do(self.store.rollouts.settle(*split, status, reason, None))
        assert answer == (model.status if model.ended else "ok")
        if not model.ended:
            self.end(uid, status, model.attempts, model.worker if model.status == "running" else None)

    @rule(data=st.data())
    def cancel_batch(self, data: st.DataObject) -> None:
        """All that has not ended, ends."""
        if not self.batches:
            return
        batch_id = data.draw(st.sampled_from(list(self.batches)))
        still = [uid for uid in self.batches[batch_id] if not self.rollouts[uid].ended]
        assert self.do(self.store.batches.cancel(batch_id)) == len(still)
        for uid in still:
            model = self.rollouts[uid]
            self.end(uid, RolloutStatus.CANCELLED, model.attempts, model.worker if model.status == "running" else None)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Only what has ended can be deleted, and nothing of it stays."""
        if not self.batches:
            return
        batch_id = data.draw(st.sampled_from(list(self.batches)))
        if not all(self.rollouts[uid].ended for uid in self.batches[batch_id]):
            with pytest.raises(BatchStillRunning):
                self.do(self.store.batches.delete(batch_id))
            return
        self.forget(batch_id)

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        """The heart of it."""
        for batch_id, uids in self.batches.items():
            outbox = self.raw.lrange(f"rp:batch:{batch_id}:outbox", 0, -1)
            for index, uid in enumerate(uids):
                model = self.rollouts[uid]
                view = self.do(self.store.rollouts.view(uid, OWNER))
                assert view is not None
                assert (view.status, view.attempt) == (model.status, model.attempts)
                published = self.raw.zscore("rp:published:default", uid) is not None
                waits = any(self.raw.zscore(f"rp:{name}", uid) is not None for name in ("delayed", "suspects"))
                findable = str(index) in outbox or published or waits
                if model.status == "queued":
                    assert findable, "nobody would ever run it"
                    if outbox:
                        assert batch_id in self.raw.lrange(f"rp:run:default:{batch_id}", 0, -1)
                else:
                    assert not published
                kept = self.do(self.store.rollouts.read_journal(uid))
                assert kept == ([] if model.ended else model.journal)
            self.delivered_once(batch_id, uids)
        assert int(self.raw.get("rp:open") or 0) == sum(not model.ended for model in self.rollouts.values())

    def delivered_once(self, batch_id: str, uids: list[str]) -> None:
        """What a reader of the batch gets, and what its status says."""
        page = self.do(self.store.batches.results(batch_id, "0", 100))
        results = {result["uid"]: result for _, data in page.items for result in [orjson.loads(data)]}
        assert len(results) == len(page.items)
        ended = {uid: self.rollouts[uid] for uid in uids if self.rollouts[uid].ended}
        assert results.keys() == ended.keys()
        for uid, model in ended.items():
            found = {name: results[uid][name] for name in ("status", "attempt", "worker")}
            assert found == model.result
        assert page.complete == (len(ended) == len(uids))
        status = self.do(self.store.batches.status(batch_id, OWNER))
        assert status is not None
        counted = {name: n for name, n in status.counts.items() if n}
        expected: dict[RolloutStatus, int] = {}
        for uid in uids:
            name = RolloutStatus(self.rollouts[uid].status)
            expected[name] = expected.get(name, 0) + 1
        assert counted == expected

    def end(self, uid: str, status: RolloutStatus, attempt: int, worker: str | None) -> None:
        """A rollout ends for good."""
        model = self.rollouts[uid]
        model.status, model.token = status.value, None
        model.result = {"status": status.value, "attempt": attempt, "worker": worker}

    def forget(self, batch_id: str) -> None:
        """Deletes a batch here and there."""
        self.do(self.store.batches.delete(batch_id))
        for uid in self.batches.pop(batch_id):
            del self.rollouts[uid]
        self.keys = {key: batch for key, batch in self.keys.items() if batch != batch_id}
        self.names = {name: uid for name, uid in self.names.items() if not uid.startswith(batch_id)}

    def teardown(self) -> None:
        """Whatever happened: what is open can be finished, and what is deleted is gone."""
        try:
            for worker in WORKERS:
                self.die(worker)
            self.recover()
            self.raw.delete("rp:delayed")
            for uid, model in self.rollouts.items():
                if not model.ended:
                    claim = self.claim_one(uid, "w3")
                    assert claim is not None
                    self.finish(claim, RolloutStatus.COMPLETED, False)
            self.everything_is_where_it_should_be()
            for batch_id in list(self.batches):
                self.forget(batch_id)
            left = [key for key in self.raw.scan_iter("rp:*") if self.raw.ttl(key) < 0]
            assert [key for key in left if not any(map(key.startswith, (k.rstrip("*") for k in KEPT)))] == []
        finally:
            self.do(self.store.close())
            self.runner.close()
            self.raw.close()


def test_the_store_does_what_its_model_does(redis_url: str) -> None:
    StoreMachine.url = redis_url
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
