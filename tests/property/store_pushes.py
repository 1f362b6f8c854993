"""Pushes to webhooks in the store's state machine: workers lease and settle them, late or twice, and somebody retries.

Each result of a batch with a webhook is due there until its push is delivered, given up or stopped, and is counted as
one of them; a deleted batch has none.
"""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, invariant, multiple, rule
from tests.property.store_attempts import StoreAttempts
from tests.property.store_faults import LONG_AGO_MS
from tests.property.store_world import WHICH, one_of

from rolloutpool_common.capabilities.webhooks.pushes import DuePush, Pushes
from rolloutpool_common.capabilities.webhooks.wire import Delivery

WEBHOOK = Delivery(callback_url="http://127.0.0.1:9/hook", secret="long enough")
SETTLED = ("delivered", "dead", "stopped")


class StorePushes(StoreAttempts):
    """The rules for pushes."""

    tickets, claims = StoreAttempts.tickets, StoreAttempts.claims
    pushes = Bundle("pushes")

    @rule(target=pushes, limit=st.integers(1, 3), lease_over=st.booleans())
    def take_pushes(self, limit: int, lease_over: bool) -> MultipleResults[DuePush]:
        """A worker leases pushes, perhaps those of a worker that died."""
        if lease_over:
            for uid in map(str, self.raw.zrange("rp:push:due", 0, -1)):
                self.raw.zadd("rp:push:due", {uid: LONG_AGO_MS})
        taken = self.do(Pushes(self.store).take(limit, lease_s=600))
        assert len({push.uid for push in taken}) == len(taken) <= limit
        assert all(self.rollouts[push.uid].push == "due" for push in taken)
        return multiple(*taken)

    @rule(push=pushes, what=st.sampled_from(["delivered", "delivered", "dead", "retry", "down"]), twice=st.booleans())
    def settle_push(self, push: DuePush, what: str, twice: bool) -> None:
        """A worker says what became of a push, perhaps long after its lease, perhaps of a batch that is gone."""
        for _ in range(1 + twice):
            self.do(Pushes(self.store).settle(push, what, retry_in_s=600))  # type: ignore[arg-type]
        model = self.rollouts.get(push.uid)
        if model is not None and model.push == "due" and what in ("delivered", "dead"):
            model.push = what

    @rule(which=WHICH)
    def retry_pushes(self, which: int) -> None:
        """Somebody has all pushes of a batch made again that were not delivered."""
        if not self.batches:
            return
        batch_id = one_of(list(self.batches), which)
        due = [model for model in self.batches[batch_id].rollouts if model.push in ("due", "dead")]
        assert self.do(Pushes(self.store).retry(batch_id, len(self.batches[batch_id].uids))) == len(due)
        for model in due:
            model.push = "due"

    @invariant()
    def each_result_is_pushed_once(self) -> None:
        """What is due, and what the state of a batch says of it."""
        pushed = {batch_id: batch for batch_id, batch in self.batches.items() if batch.pushed}
        assert all(model.push is None for model in self.rollouts.values() if not model.batch.pushed)
        # In one round trip, because this is asked after each step.
        pipe = self.raw.pipeline(transaction=False)
        pipe.zrange("rp:push:due", 0, -1)
        pipe.hkeys("rp:push:attempts")
        for batch_id in pushed:
            pipe.hmget(f"rp:batch:{batch_id}", [f"push:{name}" for name in ("pending", *SETTLED)])
            pipe.smembers(f"rp:batch:{batch_id}:undelivered")
        listed, tried, *found = pipe.execute()
        due = {uid for uid, model in self.rollouts.items() if model.push == "due"}
        assert set(listed) == due
        assert set(tried) <= due
        for batch, counts, undelivered in zip(pushed.values(), found[::2], found[1::2], strict=True):
            assert all((model.push is not None) == model.ended for model in batch.rollouts)
            for n, push in zip(counts, ("due", *SETTLED), strict=True):
                assert int(n or 0) == sum(model.push == push for model in batch.rollouts)
            assert undelivered == {str(n) for n, model in enumerate(batch.rollouts) if model.push == "dead"}
