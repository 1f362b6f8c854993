"""Pushes to webhooks in the store's state machine: workers lease and settle them, late or twice, and somebody retries.

Each result of a batch with a webhook is due there until its push is delivered, given up or stopped, and is counted as
one of them; a deleted batch has none.
"""

import time

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, invariant, multiple, rule
from tests.property.store_attempts import StoreAttempts
from tests.property.store_faults import LONG_AGO_MS
from tests.property.store_model import RolloutModel
from tests.property.store_world import WHICH, one_of
from tests.support.batches import OWNER

from rolloutpool_common.capabilities.webhooks.pushes import DuePush, Pushes
from rolloutpool_common.capabilities.webhooks.wire import Delivery

WEBHOOK = Delivery(callback_url="http://127.0.0.1:9/hook", secret="long enough")
SETTLED = ("delivered", "dead", "stopped")


class StorePushes(StoreAttempts):
    """The rules for pushes."""

    tickets, claims = StoreAttempts.tickets, StoreAttempts.claims
    pushes = Bundle("pushes")

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        """Whether the receiver was down a moment ago, so that all pushes wait."""

    @rule(target=pushes, limit=st.integers(1, 3), lease_over=st.booleans())
    def take_pushes(self, limit: int, lease_over: bool) -> MultipleResults[DuePush]:
        """A worker leases pushes, perhaps those of a worker that died, and after the receiver was down."""
        due = {uid: model for uid, model in self.rollouts.items() if model.push == "due"}
        if lease_over:
            self.down = False
            for key in self.raw.scan_iter("rp:push:down:*"):
                self.raw.delete(key)
            for uid, model in due.items():
                self.raw.zadd("rp:push:due", {uid: LONG_AGO_MS})
                model.push_waits = False
        # Another worker asks as well, and gets what is left.
        return multiple(*self.take_ready(due, limit), *self.take_ready(due, 3))

    def take_ready(self, due: dict[str, RolloutModel], limit: int) -> list[DuePush]:
        """Leases what is due now, of which the model knows."""
        ready = {uid for uid, model in due.items() if not model.push_waits}
        taken = self.do(Pushes(self.store).take(limit, lease_s=600))
        assert len({push.uid for push in taken}) == len(taken) == (0 if self.down else min(limit, len(ready)))
        assert {push.uid for push in taken} <= ready
        for push in taken:
            due[push.uid].push_tries += 1
            assert push == DuePush(push.uid, due[push.uid].push_tries, f"{OWNER} {WEBHOOK.callback_url}", 0)
        for uid in ready if self.down else [push.uid for push in taken]:
            due[uid].push_waits = True
        return taken

    @rule(push=pushes, what=st.sampled_from(["delivered", "delivered", "dead", "retry", "down"]), twice=st.booleans())
    def settle_push(self, push: DuePush, what: str, twice: bool) -> None:
        """A worker says what became of a push, perhaps long after its lease, perhaps of a batch that is gone."""
        for _ in range(1 + twice):
            self.do(Pushes(self.store).settle(push, what, retry_in_s=600))  # type: ignore[arg-type]
        model = self.rollouts.get(push.uid)
        self.down = what == "down" or (self.down and what != "delivered")
        if model is not None:
            model.batch.was_down |= what == "down"
            if model.push == "due":
                model.push_waits = True
                if what in ("delivered", "dead"):
                    model.push, model.push_tries = what, 0
                # Whoever takes pushes is there, as one who reads.
                model.batch.unread &= what != "delivered"

    @rule(which=WHICH)
    def retry_pushes(self, which: int) -> None:
        """Somebody has all pushes of a batch made again that were not delivered."""
        if not self.batches:
            return
        batch_id = one_of(list(self.batches), which)
        due = [model for model in self.batches[batch_id].rollouts if model.push in ("due", "dead")]
        assert self.do(Pushes(self.store).retry(batch_id, len(self.batches[batch_id].uids))) == len(due)
        self.down = self.down and not self.batches[batch_id].was_down
        for model in due:
            model.push, model.push_waits = "due", False

    @invariant()
    def each_result_is_pushed_once(self) -> None:
        """What is due, and what the state of a batch says of it."""
        pushed = {batch_id: batch for batch_id, batch in self.batches.items() if batch.pushed}
        assert all(model.push is None for model in self.rollouts.values() if not model.batch.pushed)
        # In one round trip, because this is asked after each step.
        pipe = self.raw.pipeline(transaction=False)
        pipe.zrange("rp:push:due", 0, -1)
        pipe.zrangebyscore("rp:push:due", (time.time() + 60) * 1000, "+inf")
        pipe.hkeys("rp:push:attempts")
        for batch_id in pushed:
            pipe.hmget(f"rp:batch:{batch_id}", [f"push:{name}" for name in ("pending", *SETTLED)])
            pipe.smembers(f"rp:batch:{batch_id}:undelivered")
        listed, later, tried, *found = pipe.execute()
        due = {uid for uid, model in self.rollouts.items() if model.push == "due"}
        assert set(listed) == due
        assert set(later) == {uid for uid in due if self.rollouts[uid].push_waits}
        assert set(tried) <= due
        for batch, counts, undelivered in zip(pushed.values(), found[::2], found[1::2], strict=True):
            assert all((model.push is not None) == model.ended for model in batch.rollouts)
            for n, push in zip(counts, ("due", *SETTLED), strict=True):
                assert int(n or 0) == sum(model.push == push for model in batch.rollouts)
            assert undelivered == {str(n) for n, model in enumerate(batch.rollouts) if model.push == "dead"}
