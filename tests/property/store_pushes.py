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
from rolloutpool_common.store.keys import split_uid

WEBHOOK = Delivery(callback_url="http://127.0.0.1:9/hook", secret="long enough")


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
        due = {uid for uid, model in self.rollouts.items() if model.push == "due"}
        assert set(self.raw.zrange("rp:push:due", 0, -1)) == due
        assert set(self.raw.hkeys("rp:push:attempts")) <= due
        for batch_id, batch in self.batches.items():
            assert all((model.push is not None) == (batch.pushed and model.ended) for model in batch.rollouts)
            known = {
                name: int(n) for name, n in self.raw.hgetall(f"rp:batch:{batch_id}").items() if name[:5] == "push:"
            }
            for name, push in (("pending", "due"), *((one, one) for one in ("delivered", "dead", "stopped"))):
                assert known.get(f"push:{name}", 0) == sum(model.push == push for model in batch.rollouts)
            undelivered = {int(index) for index in self.raw.smembers(f"rp:batch:{batch_id}:undelivered")}
            assert undelivered == {
                (split_uid(uid) or ("", 0))[1]
                for uid, model in zip(batch.uids, batch.rollouts, strict=True)
                if model.push == "dead"
            }
