"""The Redis, the workers and the model of the store's state machine, and the steps that several of its rules share."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from tests.property.store_model import BatchModel, RolloutModel
from tests.support.batches import announce, result_of
from tests.support.journals import turn_record
from tests.support.secrets import SECRETS

from rolloutpool_common.capabilities.grading.kept import GradingClaim
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, ClaimLost, Store, new_token
from rolloutpool_common.store.keys import uid_of

T = TypeVar("T")
WHICH = st.integers(0, 11)
"""Which of the present things a rule takes, as `one_of` counts them."""
WORKERS = {"w1": WorkerRole.SHARED, "w2": WorkerRole.SHARED, "w3": WorkerRole.ISOLATED}
KEYS = ("first", "second")
NAMES = ("a", "b")
KEPT = (
    *("rp:finished", "rp:leader", "rp:totals", "rp:workers", "rp:worker:*", "rp:open", "rp:epoch"),
    *("rp:schema", "rp:isolated", "rp:trials", "rp:condemned", "rp:served", "rp:known_runs", "rp:push:dead"),
)
"""What is bounded by itself, whatever was submitted."""


def one_of(things: Sequence[T], which: int) -> T:
    """One of what is there. The number is drawn before, so that a history draws the same whatever is there."""
    return things[which % len(things)]


class StoreWorld(RuleBasedStateMachine):
    """One Redis, emptied before each history."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.raw = redis.Redis.from_url(self.url, decode_responses=True)
        self.raw.flushall()
        self.store = Store.open(self.url, secrets=SECRETS)
        self.rollouts: dict[str, RolloutModel] = {}
        self.batches: dict[str, BatchModel] = {}
        self.numbers = itertools.count(1)
        """Ids are counted: random ones would stand in another order where Redis sorts what has one score, and
        a history that is played again would go another way."""
        self.keys: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.has_precancels: set[str] = set()
        self.paused = False
        self.claimed: list[Claim] = []
        """All claims that were ever made."""
        self.ids: dict[str, str] = {}
        """Worker -> the id of its present process."""
        self.ends: Counter[str] = Counter()
        """How many rollouts have ever ended in each way, and how many were accepted."""
        self.condemned: set[str] = set()
        """Workers whose present process was declared dead, and lives."""

    def script(self, name: str, *args: Any) -> Any:
        """Runs a script that no method of the store runs alone."""

        async def step() -> Any:
            return await self.store.batches._connection.script(name, *args)

        return self.do(step())

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        """Runs a step."""
        return self.runner.run(step)

    def start_workers(self) -> None:
        """All workers are there, and the reconciler has made its first round, which counts no time."""
        for worker in WORKERS:
            self.start_worker(worker)
        assert self.do(self.store.reconciliation.run_once()).leader

    def start_worker(self, worker: str) -> None:
        """Starts another process of a worker: it has an id of its own."""
        self.ids[worker] = f"{worker}.{next(self.numbers)}"
        self.condemned.discard(worker)
        self.do(announce(self.store, self.ids[worker], role=WORKERS[worker]))

    def claim_one(self, uid: str, worker: str, twice: bool = False) -> Claim | None:
        """Makes the claim that the model says, or none."""
        model, token, role = self.rollouts.get(uid), new_token(), WORKERS[worker]
        answer = self.do(self.store.rollouts.claim(uid, self.ids[worker], role, token=token))
        if twice and isinstance(answer, Claim):
            again = self.do(self.store.rollouts.claim(uid, self.ids[worker], role, token=token))
            assert isinstance(again, Claim)
            assert again.attempt == answer.attempt
        refusal = "gone" if model is None else model.refusal(role, condemned=worker in self.condemned)
        if model is None or refusal is not None:
            assert answer == refusal
            return None
        assert isinstance(answer, Claim)
        model.attempts += 1
        found = (answer.attempt, answer.crashes, answer.retries, answer.journal_length, answer.clean)
        assert found == (model.attempts, model.crashes, model.retries, len(model.journal), model.clean)
        grading = GradingClaim.of(answer)
        assert (grading.complete, grading.leads) == (model.kept is not None, model.batch.leader is model)
        model.status, model.token, model.worker, model.called = "running", token, self.ids[worker], False
        for stale in [one for one in self.claimed if one.uid == uid][-1:]:
            self.writes_nothing(stale)
        self.claimed.append(answer)
        # A second ticket of it, which may come at any time, gives it to nobody else.
        assert self.do(self.store.rollouts.claim(uid, self.ids["w1"], WORKERS["w1"], token=new_token())) == "taken"
        return answer

    def writes_nothing(self, stale: Claim) -> None:
        """A worker that had a rollout before another one got it changes nothing of it any more."""
        write = self.store.rollouts
        for step in (
            write.journal(stale, [turn_record("stale")], turns=1),
            write.finish(stale, result_of(stale)),
            write.restart(stale),
        ):
            with pytest.raises(ClaimLost):
                self.do(step)
        assert not self.do(write.release(stale, clean=True))

    def take_next(self, worker: str) -> Claim | None:
        """Publishes the next ticket, which this worker gets at once."""
        taken = self.do(self.store.outbox.reserve(Priority.DEFAULT, 1))
        return self.claim_one(uid_of(taken[0].batch_id, taken[0].index), worker) if taken else None

    def progressed(self, model: RolloutModel, record: JournalRecord) -> None:
        """The journal of a rollout has grown."""
        model.journal.append(record)
        model.called = True
        model.crashes = 0

    def end(self, uid: str, status: RolloutStatus, attempt: int, worker: str | None) -> None:
        """A rollout ends for good."""
        model = self.rollouts[uid]
        model.status, model.token = status.value, None
        self.ends[f"status:{status}"] += 1
        model.result = {"status": status.value, "attempt": attempt, "worker": worker}
        model.push = "due" if model.batch.pushed else None
        model.batch.leave(model)

    def end_outside(self, uid: str, status: RolloutStatus) -> None:
        """A rollout ends without its worker. A failure keeps the conversation that waits for its grade."""
        model = self.rollouts[uid]
        if status is RolloutStatus.FAILED and model.kept is not None:
            return self.end(uid, status, *model.kept)
        self.end(uid, status, model.attempts, model.worker if model.status == "running" else None)

    def cancelled_all(self, batch: BatchModel) -> None:
        """A batch is cancelled: what had ended otherwise is not pushed any more, and the rest ends."""
        for uid, model in zip(batch.uids, batch.rollouts, strict=True):
            if not model.ended:
                self.end_outside(uid, RolloutStatus.CANCELLED)
            elif model.push == "due" and model.status != RolloutStatus.CANCELLED:
                model.push, model.push_tries = "stopped", 0

    def forget(self, batch_id: str) -> None:
        """Deletes a batch here and there."""
        self.do(self.store.batches.delete(batch_id))
        for uid in self.batches.pop(batch_id).uids:
            del self.rollouts[uid]
        self.keys = {key: batch for key, batch in self.keys.items() if batch != batch_id}
        self.names = {name: uid for name, uid in self.names.items() if not uid.startswith(batch_id)}

    def close(self) -> None:
        """Closes all connections."""
        self.do(self.store.close())
        self.runner.close()
        self.raw.close()
