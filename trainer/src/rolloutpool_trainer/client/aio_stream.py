"""Rollouts ahead of training, for asyncio. `sync_stream.py` is generated from this file; edit only this one.

How a stream keeps the pool busy while the trainer trains:

1. `in_flight` batches are submitted ahead. Groups are yielded from the oldest one as they end.
2. When the oldest batch is read, it leaves, and the next of the prompts is submitted.
3. A rollout that was sampled more than `max_staleness` versions ago is left out (`dropped["stale"]`), and its group
   with it if too few remain. The trainer says how new its weights are: `stream.version = 12`.
4. With a `run`, the stream announces that version to the pool, and its batches carry `max_staleness`. So the pool drops
   a rollout as soon as it is too old, and not only here, after it has taken its turns to the end. What became too old
   while its result waited to be read is still left out here. Both are counted in `dropped["stale"]`.
5. Its batches have a lease of `LEASE_SECONDS`: they are cancelled when the stream has not asked for them for so long.
   A trainer that has died can't cancel them, and workers would go on calling it or its engines. While a group is
   trained nothing is asked, so a lease is longer than a step.

A stream survives both sides. If the pool is away for longer than the client asks, `PoolUnavailable` is raised, and
iterating again goes on. If the trainer ends, a new one gives the `cursor` that was saved with the checkpoint. A group
is yielded at least once: it comes again only if the trainer had it and did not save the cursor after it.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import CancelCause, RolloutItem
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_batch import AsyncBatch
from rolloutpool_trainer.client.groups import TrainableGroup
from rolloutpool_trainer.client.lease_renewal import LeaseRenewal
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.client.stream_cursor import OpenBatch, StreamCursor
from rolloutpool_trainer.client.submission import Submission
from rolloutpool_trainer.client.tally import sampled_versions
from rolloutpool_trainer.errors import IdempotencyConflict, NotFound

MOST_SUBMITS = 3
"""A batch that the pool loses so often is lost for another reason than a restart."""

LEASE_SECONDS = 3600.0
"""Without a request for so long, a batch of a stream ends. It is also how long a trainer may take to come back with its
cursor, or to train between two groups."""

_Items = Sequence[RolloutItem | Mapping[str, Any]]


class AsyncRolloutStream:
    """Yields trainable groups of batch after batch, and submits ahead."""

    def __init__(
        self,
        client: AsyncRolloutClient,
        prompts: Iterable[_Items],
        *,
        in_flight: int = 2,
        max_staleness: int | None = 1,
        min_usable: int = 1,
        refill: int = 0,
        cursor: str | None = None,
        lease_seconds: float | None = LEASE_SECONDS,
        **options: Any,
    ) -> None:
        """Makes a stream; nothing is submitted before it is iterated.

        Args:
            client: Of the pool.
            prompts: Batches, each a list of rollouts as `submit` takes them. After a restart it must give the same
                ones in the same order; those that were trained already are passed over.
            in_flight: How many batches are submitted and not yet read to their end.
            max_staleness: How many versions old a sample may be; None takes any. Versions must end with a number. With
                `run`, the pool compares too; it reads versions that are decimal integers.
            min_usable: How many rollouts a group must have.
            refill: How often failed siblings may be run again.
            cursor: Where to go on: `stream.cursor` of the process before.
            lease_seconds: A batch is cancelled when nobody has asked for it for so long, 10 s to a week; an hour by
                default. It must be longer than your longest step, and than the time that a restart takes. None: the
                batches of a trainer that has died run to their end.
            **options: Keyword arguments of `submit`: `trainer`, `defaults`, `run`, `on_stale` …

        Raises:
            ValueError: `in_flight` is below 1, or the cursor is not one of a stream over these prompts.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight must be at least 1; it is {in_flight}")
        self.version: int | None = None
        """The number of the weights in training; set it after each update. With a `run`, it is announced when the next
        group is asked for. None: nothing is stale here, and nothing is announced; the pool then compares with the
        newest version that it has seen."""
        self.dropped: Counter[str] = Counter()
        """How many rollouts were left out of the batches that were read to their end, by reason."""
        self._run: str | None = options.get("run")
        limited = self._run is not None and max_staleness is not None
        options["lease_seconds"] = lease_seconds
        self._renewal = LeaseRenewal(lease_seconds)
        self._client, self._options = client, options | ({"max_staleness": max_staleness} if limited else {})
        self._announced: int | None = None
        self._in_flight, self._max_staleness = in_flight, max_staleness
        self._min_usable, self._refill = min_usable, refill
        self._state = StreamCursor.read(cursor)
        self._prompts = iter(prompts)
        self._kept: dict[int, _Items] = {}
        """By position, the prompts of the batches in flight, and of one whose submit failed."""
        self._batches: dict[int, AsyncBatch] = {}
        self._latest: AsyncBatch | None = None
        """Of the last group."""
        self._pass_over_trained()

    @property
    def cursor(self) -> str:
        """Returns where the stream stands, for the checkpoint: all groups that were yielded so far count as trained."""
        return self._state.write()

    async def __aiter__(self) -> AsyncIterator[TrainableGroup]:
        """Yields groups until the prompts are used up. Iterating again goes on where the last one ended.

        Raises:
            PoolUnavailable: The pool did not answer for the client's time-out.
            BatchRejected: Something in the next prompts is wrong.
        """
        while True:
            await self._announce()
            await self._submit_ahead()
            if not self._state.open:
                return
            oldest = self._state.open[0]
            batch = self._batches[oldest.position]
            try:
                async for group in batch.trainable_groups(self._min_usable, refill=self._refill, drop=self._stale):
                    if group.name not in oldest.yielded:
                        oldest.yielded.append(group.name)
                        self._latest = batch
                        yield group
                        await self._announce()
            except NotFound:
                # Its results have expired, or the pool was set up anew: what was not yielded is sampled again.
                if oldest.submits >= MOST_SUBMITS:
                    raise
                oldest.submits += 1
                await self._submit(oldest)
                continue
            # Its trainer was away for longer than the lease, this one or the process before.
            if oldest.submits < MOST_SUBMITS and await self._lease_is_over(batch):
                oldest.submits += 1
                await self._submit(oldest)
                continue
            self._renewal.open.clear()
            self._renewal.open.update(dict.fromkeys(entry.batch_id for entry in self._state.open[1:]))
            self._state.open.remove(oldest)
            self.dropped += batch.dropped
            del self._batches[oldest.position], self._kept[oldest.position]

    async def summary(self) -> dict[str, float]:
        """Adds up what was read so far of the last group's batch, as `batch.summary` does; empty before the first."""
        return {} if self._latest is None else await self._latest.summary(self.version)

    async def cancel(self) -> None:
        """Ends what is in flight, where training is over before the prompts are.

        Raises:
            PoolUnavailable: The pool did not answer for the client's time-out.
        """
        for entry in self._state.open:
            await self._batches[entry.position].cancel()

    async def _announce(self) -> None:
        """Tells the pool how new the weights are, where that has changed."""
        version = self.version
        if self._run is None or version is None or version == self._announced:
            return
        # The first version may be lower than what the process before announced, because this one began at a checkpoint.
        back = self._announced is None or version < self._announced
        await self._client.announce(self._run, version, rollback=back)
        self._announced = version

    async def _submit_ahead(self) -> None:
        while len(self._state.open) < self._in_flight:
            position = self._state.taken
            # A submit that failed is tried again with the prompts that were taken for it.
            if position not in self._kept:
                items = next(self._prompts, None)
                if items is None:
                    return
                self._kept[position] = items
            batch = OpenBatch(position, "")
            await self._submit(batch)
            self._state.open.append(batch)
            self._state.taken += 1

    async def _submit(self, entry: OpenBatch) -> None:
        items = self._kept[entry.position]
        try:
            key = self._state.key(entry.position, entry.submits)
            batch = await self._client.submit(items, idempotency_key=key, **self._options)
        except IdempotencyConflict:
            # A trainer that ended after its submit has come back with another address, so this is another batch.
            entry.submits += 1
            key = self._state.key(entry.position, entry.submits)
            batch = await self._client.submit(items, idempotency_key=key, **self._options)
        entry.batch_id = batch.batch_id
        self._keep(entry.position, batch)

    def _keep(self, position: int, batch: AsyncBatch) -> None:
        batch.renewal = self._renewal
        self._renewal.open[batch.batch_id] = None
        self._batches[position] = batch

    async def _lease_is_over(self, batch: AsyncBatch) -> bool:
        """Whether a batch was cancelled because nobody read it; asks only where something was cancelled."""
        if not batch.dropped[RolloutStatus.CANCELLED]:
            return False
        return (await batch.status()).cancel_cause is CancelCause.LEASE

    def _stale(self, rollout: FinishedRollout) -> str | None:
        versions = sampled_versions(rollout)
        if self.version is None or self._max_staleness is None or not versions:
            return None
        return "stale" if self.version - min(versions) > self._max_staleness else None

    def _pass_over_trained(self) -> None:
        """Goes to where the process before stood, and knows the prompts of what was in flight then."""
        in_flight = {entry.position: entry for entry in self._state.open}
        options = {name: value for name, value in self._options.items() if name != "group"}
        for position, items in enumerate(islice(self._prompts, self._state.taken)):
            if entry := in_flight.pop(position, None):
                self._kept[position] = items
                self._keep(position, AsyncBatch(self._client, entry.batch_id, None, Submission(items, options)))
        if in_flight:
            raise ValueError("the cursor is of a stream with more prompts; give the same prompts in the same order")
