"""A batch and its groups, for asyncio. `sync_batch.py` is generated from this one (`make generate`): edit only this."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Self

from rolloutpool_common.protocol.batch import BatchAccepted, BatchPurged, BatchState, BatchStatus
from rolloutpool_common.protocol.groups import Group
from rolloutpool_common.protocol.rows import SummaryItem
from rolloutpool_trainer.client import calls, views
from rolloutpool_trainer.client.doors import AsyncDoor
from rolloutpool_trainer.client.groups import Drop, FinishedGroup, GroupCollector, SelectedGroup, select
from rolloutpool_trainer.client.lease_renewal import LeaseRenewal
from rolloutpool_trainer.client.progress import BatchProgress
from rolloutpool_trainer.client.refills import GroupRefill, GroupSampling
from rolloutpool_trainer.client.results import FinishedRollout, ResultStream, SummaryStream
from rolloutpool_trainer.client.retry import status_delays
from rolloutpool_trainer.client.silence import Silence
from rolloutpool_trainer.client.submission import Submission
from rolloutpool_trainer.client.tally import BatchTally
from rolloutpool_trainer.composition import AsyncBatchParts, AsyncGroupParts
from rolloutpool_trainer.errors import IdempotencyConflict, NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTrainableGroup(AsyncGroupParts, SelectedGroup):
    """A finished group, as it is trained: `rollouts`, and what was left out."""

    _client: AsyncDoor = field(repr=False, compare=False)

    @classmethod
    def of(cls, group: SelectedGroup, client: AsyncDoor) -> Self:
        """Makes a group of what was selected."""
        return cls(**{part.name: getattr(group, part.name) for part in fields(SelectedGroup)}, _client=client)


class AsyncBatch(AsyncBatchParts):
    """A submitted batch: its results, its state, and how to end it."""

    def __init__(
        self,
        client: AsyncDoor,
        batch_id: str,
        accepted: BatchAccepted | None = None,
        submission: Submission | None = None,
    ) -> None:
        self._client = client
        self.batch_id = batch_id
        self.accepted = accepted
        """The pool's receipt with the uid of each rollout; None for a batch that was looked up by its id."""
        self._submission = submission
        self.renewal = LeaseRenewal(None)
        """Of the stream that it belongs to: names batches that are read later, whose leases have to go on meanwhile."""
        self._tally = BatchTally()

    async def results(
        self, cursor: str = "0", *, timeout: float | None = None, progress: bool = False
    ) -> AsyncIterator[FinishedRollout]:
        """Yields each rollout once, in the order in which they end, until all have ended.

        Where none ends for ten seconds because of a fault, a warning in the log says which (`rolloutpool_trainer`).

        Args:
            cursor: Where to go on: `result.cursor` of the last result that was taken. After a restart of Redis, an
                older cursor means the start, so that results come again.
            timeout: Seconds from the first request until all must have ended, your own work in between included; 0
                takes what is there. None waits without limit.
            progress: Show a bar on the terminal.

        Raises:
            TimeoutError: Some have not ended within `timeout` seconds. They go on; so does a call with the cursor.
            ValueError: `timeout` is below 0.
            NotFound: The batch is unknown or its results have expired.
            PoolUnavailable: The pool did not answer for the client's time-out; go on later with the cursor.
        """
        reader, silence = ResultStream(self.batch_id, cursor, timeout), Silence()
        total = await self._total() if progress else 0
        with BatchProgress(total, shown=progress) as bar:
            while not reader.complete:
                for batch_id in self.renewal.due():
                    with suppress(NotFound):
                        await self._client.ask(calls.status(batch_id))
                page = await self._client.ask(reader.call())
                if silence.is_due(heard=bool(page.items) or page.complete):
                    silence.tell(await self.status())
                for result in reader.take(page):
                    bar.add(result)
                    self._tally.add(result)
                    yield result

    async def groups_as_completed(self) -> AsyncIterator[FinishedGroup]:
        """Yields each group once all its rollouts have ended, whatever their end; the first to end comes first.

        A rollout without a group is a group of its own. It begins at the start of the results, also after a restart:
        skip the groups that were trained already, or use `RolloutStream`, which does that.

        Raises:
            NotFound: The batch is unknown or its results have expired.
            PoolUnavailable: The pool did not answer for the client's time-out; call it again later.
        """
        collector = GroupCollector((await self.table(["group"]))["group"])
        async for result in self.results():
            if (group := collector.take(result)) is not None:
                yield group

    async def trainable_groups(
        self,
        min_usable: int = 1,
        *,
        refill: int = 0,
        drop: Drop | None = None,
        keep: Callable[[AsyncTrainableGroup], bool] | None = None,
    ) -> AsyncIterator[AsyncTrainableGroup]:
        """Yields what can be trained of each group, as groups end. What is left out is counted in `summary`.

        A rollout that failed by itself, expired or was cancelled is no sample with reward 0, so it is left out. A group
        in which fewer than `min_usable` remain, or that `keep` refuses, is left out as a whole, or sampled again first.

        Args:
            min_usable: How many rollouts a group must have; fewer make a poor baseline.
            refill: How often a group that can't be used may be sampled again: the failed siblings of one that has too
                few, and others in the place of all rollouts of one that `keep` refused. They run at once, next to the
                rest of the batch, and such groups come last.
            drop: Says why a rollout that could be trained shall be left out; None keeps it.
            keep: Says whether a group shall be trained, for example whether its rewards differ. It may be asked again
                about the same group after a restart.

        Raises:
            NotFound: The batch is unknown or its results have expired.
            RefillImpossible: A group has to be refilled, and the batch was not submitted by this object's client.
            TypeError: `keep` returned None.
        """
        refills: deque[tuple[GroupRefill, AsyncBatch]] = deque()

        async def judged(sampling: GroupSampling) -> AsyncTrainableGroup | None:
            """Returns the group where it can be used, and runs what may mend it."""
            group = AsyncTrainableGroup.of(sampling.group, self._client)
            verdict = group.judge(min_usable, keep)
            if (again := sampling.refill(verdict, self._submission, refill)) is not None:
                refills.append((again, await self._submit_again(again)))
                return None
            return group if self._tally.add_group(group, verdict) else None

        async for finished in self.groups_as_completed():
            sampling = GroupSampling(finished.rollouts, select(finished.rollouts, drop), self._submission)
            if (group := await judged(sampling)) is not None:
                yield group
        while refills:
            again, batch = refills.popleft()
            results = []
            async for result in batch.results():
                self._tally.add(result)
                results.append(result)
            if (group := await judged(again.ended(results, drop))) is not None:
                yield group

    @property
    def dropped(self) -> Counter[str]:
        """How many rollouts `trainable_groups` left out, by reason; `group` counts those of groups with too few."""
        return self._tally.dropped()

    async def summary(self, policy_version: str | int | None = None) -> dict[str, float]:
        """Adds up the results that were read, as one flat dict of numbers for any logger.

        It has counts by end, failures by category, p50 and p95 of spans, tokens, turns, tool errors, versions,
        alignment, and the groups that `trainable_groups` left out. A batch of which nothing was read is read to its
        end first.

        Args:
            policy_version: The weights in training, for `staleness`: by how many versions they are ahead of the oldest
                that sampled a rollout.
        """
        if not len(self._tally):
            async for _ in self.results():
                pass
        return self._tally.summary(policy_version)

    async def summaries(self, cursor: str = "0") -> AsyncIterator[SummaryItem]:
        """Yields each rollout once as it ends, like `results`; of each only its row, without tokens and texts.

        Args:
            cursor: Where to go on, as of `results`.
        """
        reader = SummaryStream(self.batch_id, cursor)
        while not reader.complete:
            page = await self._client.ask(reader.call())
            reader.turn_page(page)
            for item in page.items:
                if reader.is_new(item.summary["uid"]):
                    yield item

    async def status(self) -> BatchStatus:
        """Asks where the batch stands: counts by state, progress, rates."""
        return await self._client.ask(calls.status(self.batch_id))

    async def table(
        self, fields: Sequence[str] | None = None, *, where: Sequence[str] = (), sort: str = "index"
    ) -> dict[str, list[Any]]:
        """Asks for one row per rollout, in columns as `pandas.DataFrame` takes them; also while the batch runs.

        Args:
            fields: The columns; None stands for all (`rolloutpool_common.protocol.rows.ROW_FIELDS`).
            where: Conditions that all must be true: `status=failed`, `turns>3`, `drift~edited`.
            sort: A field; `-` in front puts the largest first.
        """
        columns: dict[str, list[Any]] = {}
        cursor: str | None = None
        while True:
            page = await self._client.ask(views.rows(self.batch_id, cursor, fields=fields, where=where, sort=sort))
            for name, column in page.columns.items():
                columns.setdefault(name, []).extend(column)
            if (cursor := page.next_cursor) is None:
                return columns

    async def groups(self) -> list[Group]:
        """Asks for the groups and their verdicts, in order of name; empty without a group policy."""
        return await self._client.ask(calls.groups(self.batch_id))

    async def cancel(self) -> None:
        """Ends every rollout of the batch that has not ended; their results say `cancelled`."""
        await self._client.ask(calls.cancel(self.batch_id))

    async def purge(self) -> BatchPurged:
        """Deletes all that is kept of the batch, which must have ended; takes the scope `admin`."""
        return await self._client.ask(calls.purge(self.batch_id))

    async def wait(self, timeout: float | None = None) -> BatchStatus:
        """Waits until all rollouts have ended.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Returns:
            The state of the ended batch.

        Raises:
            TimeoutError: Some have not ended within `timeout` seconds. They go on.
        """
        started = time.monotonic()
        for delay in status_delays():
            status = await self.status()
            if status.state is BatchState.COMPLETE:
                return status
            # A look after the time is over would be of no use, so the pause before it is not made either.
            if timeout is not None and time.monotonic() - started + delay > timeout:
                break
            await asyncio.sleep(delay)
        raise TimeoutError(f"batch {self.batch_id} has not ended within {timeout:g} s")

    async def _submit_again(self, refill: GroupRefill) -> "AsyncBatch":
        key, again = refill.key(self.batch_id), refill.submission
        try:
            batch: AsyncBatch = await self._client.submit(again.rollouts, idempotency_key=key, **again.options)
        except IdempotencyConflict:
            # A trainer that has come back with another address runs them again, as it does with whole batches.
            batch = await self._client.submit(again.rollouts, **again.options)
        self._tally.refills.add(key)
        batch.renewal = self.renewal
        batch.renewal.open[batch.batch_id] = None
        return batch

    async def _total(self) -> int:
        return self.accepted.total if self.accepted else (await self.status()).total

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.batch_id!r})"
