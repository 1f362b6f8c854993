"""The list of batches of one owner, or of all, newest first.

1. The commit of a batch adds it to two sorted sets, everybody's and its owner's; its deletion takes it out of both.
   Protocol v1's batches of one rollout have sets of their own, because they would hide all others.
2. A page is read by `list_batches.lua`, which looks at `AT_ONCE` batches and answers those that pass the filter. A
   filter that few pass takes several calls, so Redis is never busy for long. After `MOST` batches the page ends.
3. A cursor is the last batch that was looked at, and the time of its commit. It stays good when that batch is deleted,
   and batches that are accepted meanwhile come before it, so nothing is listed twice.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import orjson

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import BatchState, Priority
from rolloutpool_common.protocol.batch_list import BatchList, BatchSummary
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.connection import Connection

AT_ONCE = 500
"""Batches that one script looks at: some 2 ms of Redis."""
MOST = 10_000
"""Batches that are looked at for one page."""
_CURSOR = re.compile(r"([0-9]{1,15})-(b[0-9a-f]{32})")


@dataclass(frozen=True)
class BatchFilter:
    """Says which batches of a list are wanted."""

    state: BatchState | None = None
    run: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """All of them must be the batch's."""
    v1: bool = False
    """Protocol v1's batches of one rollout, instead of all others."""


class BatchLists:
    """The lists of batches in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @staticmethod
    def is_cursor(text: str) -> bool:
        """Tells whether a text has the form of a cursor."""
        return _CURSOR.fullmatch(text) is not None

    async def read(
        self,
        owner: str | None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        wanted: BatchFilter | None = None,
    ) -> BatchList:
        """Reads a page of the list."""
        match = _CURSOR.fullmatch(cursor or "")
        ms, batch = match.groups() if match else ("", "")
        wanted = wanted or BatchFilter()
        labels = [part for pair in wanted.labels.items() for part in pair]
        named_run = "" if wanted.run is None else f"{owner}/{wanted.run}"
        found: list[BatchSummary] = []
        for _ in range(MOST // AT_ONCE):
            page = named(
                await self._connection.script(
                    *("list_batches", owner or "", int(wanted.v1), ms, batch, limit - len(found), AT_ONCE),
                    *(wanted.state or "", named_run, *labels),
                )
            )
            found += [_summary(entry, float(page["now_ms"]) / 1000) for entry in page["batches"]]
            ms, batch = page["ms"].decode(), page["batch"].decode()
            if not batch or len(found) >= limit:
                break
        return BatchList(batches=found, next_cursor=f"{ms}-{batch}" if batch else None)


def _summary(entry: list[bytes], now_s: float) -> BatchSummary:
    batch_id = entry[0].decode()
    fields = {name.decode(): value for name, value in zip(entry[1::2], entry[2::2], strict=True)}

    def n(name: str) -> int:
        return int(fields.get(name, 0))

    owner, run = fields["owner"].decode(), fields["run"].decode()
    counts = {status: n(status) for status in RolloutStatus if status.terminal}
    total, running, grading = n("total"), n("running"), n("grading")
    created_s = n("created_ms") / 1000
    finished_s = n("finished_ms") / 1000 if "finished_ms" in fields else None
    return BatchSummary(
        batch_id=batch_id,
        state=BatchState.RUNNING if finished_s is None else BatchState.COMPLETE,
        cancelled="cancelled_ms" in fields,
        owner=owner,
        # A batch without a run takes turns under its own id (`Batches.submit`).
        run=None if run == batch_id else run.removeprefix(f"{owner}/"),
        weight=n("weight") or 1,
        priority=Priority(fields["priority"].decode()),
        labels=orjson.loads(fields["labels"]),
        v1="v1" in fields,
        total=total,
        counts={
            RolloutStatus.QUEUED: total - running - grading - sum(counts.values()),
            RolloutStatus.RUNNING: running,
            RolloutStatus.GRADING: grading,
            **counts,
        },
        turns=n("turns"),
        sampled_tokens=n("sampled"),
        failures={
            name.removeprefix("failure:"): int(value)
            for name, value in sorted(fields.items())
            if name.startswith("failure:")
        },
        created_at=datetime.fromtimestamp(created_s, UTC),
        age_s=max(now_s - created_s, 0.0),
        finished_at=None if finished_s is None else datetime.fromtimestamp(finished_s, UTC),
        seconds=max((finished_s or now_s) - created_s, 0.0),
    )
