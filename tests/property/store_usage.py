"""What an owner holds, in the store's state machine: counted anew after each step, from all that Redis has of it.

These are rules of the machine, too: annotations, which count, and a pause that nobody ends.
"""

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from tests.property.store_model import BatchModel
from tests.property.store_pushes import StorePushes
from tests.property.store_world import WHICH, one_of
from tests.support.batches import OWNER

from rolloutpool_common.capabilities.grading.annotations import Annotations, Streams
from rolloutpool_common.capabilities.runs.stored import StoredRuns
from rolloutpool_common.store.keys import run_key

BESIDE = 600
"""Counted for an ended rollout beside its texts."""


class StoreUsage(StorePushes):
    """The rules, and what must hold."""

    tickets, claims, pushes = StorePushes.tickets, StorePushes.claims, StorePushes.pushes

    @rule(which=WHICH, request=st.sampled_from(["first", "second"]), most=st.sampled_from([100, 1000]))
    def annotate(self, which: int, request: str, most: int) -> None:
        """Somebody says something of a rollout, perhaps twice, perhaps more than there is room for."""
        if self.batches:
            batch_id = one_of(list(self.batches), which)
            streams: dict[int, Streams] = {0: {"a": [[1.0]]}}
            self.do(Annotations(self.store).append(batch_id, request, {"b": {0: 1.0}}, streams, max_bytes=most))

    @rule()
    def pause_is_over(self) -> None:
        """Nobody has resumed the run in time: its batches are cancelled, and it goes on."""
        if not self.paused:
            return
        self.raw.zadd("rp:paused", {run_key(OWNER, "r"): 0})
        self.raw.hset("rp:served", "quiet_ms", 0)
        assert self.do(StoredRuns().tidy(self.store.connection, self.store.reconciliation)) == 1
        self.paused = False
        for batch in self.batches.values():
            batch.paused = False
            if batch.run is not None and not batch.over:
                self.cancelled_all(batch)

    @invariant()
    def what_owners_hold_is_counted(self) -> None:
        """Each open rollout and its reserve, and each byte that is kept, neither less nor twice."""
        usage = self.do(self.store.usage.read())
        assert usage.total.open == usage.open
        kept = [self.raw.hgetall(key) for key in self.raw.scan_iter("rp:reserve:*")]
        assert usage.total.reserved == sum(int(one["bytes"]) * int(one.get("open", 0)) for one in kept)
        assert usage.total.bytes == sum(self.bytes_of(*one) for one in self.batches.items())
        assert usage.total.weight == sum(not batch.over for batch in self.batches.values())
        assert usage.owners == ({OWNER: usage.total} if self.batches else {})

    def bytes_of(self, batch_id: str, batch: BatchModel) -> int:
        """Adds up what is kept of a batch."""
        pipe = self.raw.pipeline(transaction=False)
        pipe.hget(f"rp:batch:{batch_id}", "annotation_bytes")
        pipe.hvals(f"rp:batch:{batch_id}:rows")
        for uid in batch.uids:
            pipe.strlen(f"rp:rollout:{uid}:result")
            pipe.strlen(f"rp:rollout:{uid}:attachments")
        annotations, rows, *found = pipe.execute()
        sizes: list[int] = found
        # The two times in front of a row are Redis' own.
        texts = sum(len(row.encode()) - len(",".join(row.split(",", 2)[:2])) for row in rows)
        ended = sum(rollout.ended for rollout in batch.rollouts)
        return batch.size + int(annotations or 0) + texts + sum(sizes) + BESIDE * ended
