"""Rollouts ahead of training. Generated from `aio_stream.py` by `make generate`; edit that file, not this one.

That file says how a stream works. A stream belongs to one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import CancelCause
from rolloutpool_trainer.client.doors import Pausable, call_sync
from rolloutpool_trainer.client.stream_cursor import OpenBatch
from rolloutpool_trainer.client.stream_state import StreamState
from rolloutpool_trainer.client.submission import Submission
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.client.sync_batch import Batch, TrainableGroup
from rolloutpool_trainer.errors import IdempotencyConflict, NotFound

MOST_SUBMITS = 3
"""A batch that the pool loses so often is lost for another reason than a restart."""


class RolloutStream(StreamState[RolloutClient, Batch, TrainableGroup]):
    """Yields trainable groups of batch after batch, and submits ahead."""

    def __iter__(self) -> Iterator[TrainableGroup]:
        """Yields groups until the prompts are used up. Iterating again goes on where the last one ended.

        Raises:
            PoolUnavailable: The pool did not answer for the client's time-out.
            BatchRejected: Something in the next prompts is wrong.
            NothingKept: `keep` has refused every group of many batches in a row.
        """
        for step in self.steps(1):
            yield step[0]

    def steps(self, groups: int) -> Iterator[list[TrainableGroup]]:
        """Yields lists of whole groups, one for each training step; the last one may be shorter.

        Groups of a list that is not complete yet do not count as trained: they are in the next list, in this process or
        after a restart. Otherwise it is as iterating: it raises the same, and goes on where the last one ended.

        Args:
            groups: How many groups a list has.

        Raises:
            ValueError: `groups` is below 1.
        """
        if groups < 1:
            raise ValueError(f"a step must have at least 1 group; it has {groups}")
        for found in self._groups():
            self._gathered.append(found)
            while len(self._gathered) >= groups:
                yield self._hand_out(groups)
                self._announce()
        while self._gathered:
            yield self._hand_out(groups)

    @contextmanager
    def update(self, app: Pausable | None = None) -> Iterator[int]:
        """Pauses sampling for a block in which the weights are updated; then sets the version, and resumes.

            with stream.update(app) as version:
                optimizer.step()

        It waits for the turns that are being sampled. `version` is `stream.version` and one; None counts as 0. It is
        announced where there is a `run`, and is what `app` reports of turns whose generation names no version. If the
        block fails, nobody knows which weights there are: all stays paused, under the old version, until a further
        `update` succeeds, or you call `app.resume()` or `client.resume(run)`.

        Args:
            app: The endpoint, as `callback_app` makes it. None pauses the run in the pool instead, for engines.

        Raises:
            ValueError: There is neither an `app` nor a `run`.
            PoolUnavailable: The pool did not answer for the client's time-out. After the block this means that all
                stays paused.
        """
        if app is None and self._run is None:
            raise ValueError("there is nothing to pause: give the endpoint, or make the stream with a run")
        version = (self.version or 0) + 1
        if app is not None:
            call_sync(app.pause)
        elif self._run is not None:
            self._client.pause(self._run)
        yield version
        self.version = version
        self._announce()
        if app is not None:
            app.resume(str(version))
        elif self._run is not None:
            self._client.resume(self._run)

    def summary(self) -> dict[str, float]:
        """Adds up what was read so far of the last group's batch, as `batch.summary` does; empty before the first."""
        return {} if self._latest is None else self._latest.summary(self.version)

    def cancel(self) -> None:
        """Ends what is in flight, where training is over before the prompts are.

        Raises:
            PoolUnavailable: The pool did not answer for the client's time-out.
        """
        for entry in self._state.open:
            if entry.position not in self._read:
                self._batches[entry.position].cancel()

    def _groups(self) -> Iterator[tuple[OpenBatch, TrainableGroup]]:
        """Yields groups with their batches, without those that were yielded or gathered before."""
        while True:
            self._announce()
            self._submit_ahead()
            unread = [entry for entry in self._state.open if entry.position not in self._read]
            if not unread:
                return
            oldest = unread[0]
            batch = self._batches[oldest.position]
            kept_any = False
            known = {*oldest.yielded, *(group.name for entry, group in self._gathered if entry is oldest)}
            try:
                for group in batch.trainable_groups(**self._rules, keep=self._keep_new(known)):
                    if group.name not in known:
                        self._latest, kept_any = batch, True
                        yield oldest, group
            except NotFound:
                # Its results have expired, or the pool was set up anew: what was not yielded is sampled again.
                if oldest.submits >= MOST_SUBMITS:
                    raise
                oldest.submits += 1
                self._submit(oldest)
                continue
            # Its trainer was away for longer than the lease, this one or the process before.
            if oldest.submits < MOST_SUBMITS and self._lease_is_over(batch):
                oldest.submits += 1
                self._submit(oldest)
                continue
            self._end(unread, batch, kept_any)

    def _announce(self) -> None:
        """Tells the pool how new the weights are, where that has changed."""
        version = self.version
        if self._run is None or version is None or version == self._announced:
            return
        # The first version may be lower than what the process before announced, because this one began at a checkpoint.
        back = self._announced is None or version < self._announced
        self._client.announce(self._run, version, rollback=back)
        self._announced = version

    def _submit_ahead(self) -> None:
        while (entry := self._next()) is not None:
            self._submit(entry)
            self._state.open.append(entry)
            self._state.taken += 1

    def _submit(self, entry: OpenBatch) -> None:
        items = self._kept[entry.position]
        try:
            key = self._state.key(entry.position, entry.submits)
            batch = self._client.submit(items, idempotency_key=key, **self._options)
        except IdempotencyConflict:
            # A trainer that ended after its submit has come back with another address, so this is another batch.
            entry.submits += 1
            key = self._state.key(entry.position, entry.submits)
            batch = self._client.submit(items, idempotency_key=key, **self._options)
        entry.batch_id = batch.batch_id
        self._keep(entry.position, batch)

    def _lease_is_over(self, batch: Batch) -> bool:
        """Whether a batch was cancelled because nobody read it; asks only where something was cancelled."""
        if not batch.dropped[RolloutStatus.CANCELLED]:
            return False
        return (batch.status()).cancel_cause is CancelCause.LEASE

    def _found(self, batch_id: str, submission: Submission) -> Batch:
        return Batch(self._client, batch_id, None, submission)
