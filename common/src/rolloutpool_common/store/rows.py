"""The tables of batches: the row of each rollout, written with its end, read many at a time.

Ended rollouts have a stored row each, of some 300 bytes, and are read `SLICE` at a time. Rollouts that have not ended
have none. What there is of theirs comes from their hashes, by scripts that look at `AT_ONCE` of them.

A rollout of protocol v1 has no stored row, and one that an older version ended has none. Where they are few, their rows
are made of their results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.rows import ENDED_FIELDS, row_values
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import now_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.records import expand
from rolloutpool_common.store.waits import status_of

AT_ONCE = 500
"""Rollouts that one script looks at."""
SLICE = 1000
"""Rows per read: some 5 ms of this process' event loop, which other requests use in between."""
MAX_MADE = 100
"""Most rows of a slice that are made of results."""
_LIVE = ("status", "attempt", "worker", "turns", "claimed", "stage")
"""What is read of a rollout that has no row."""
_PLACE = {name: place for place, name in enumerate(ENDED_FIELDS)}


def row_of(result: RolloutResult) -> bytes:
    """Makes the row of a result: a JSON list, without the first two fields, which the script adds that stores it."""
    return orjson.dumps(row_values(result))


@dataclass(frozen=True)
class StoredTable:
    """Rows of one batch as they were read."""

    total: int
    """Rollouts of the batch."""
    created_ms: int
    now_ms: int
    indexes: Sequence[int]
    """Of the rows."""
    rows: list[list[Any]]
    """The values of `ENDED_FIELDS` for each of them; a row of an older version is shorter."""
    groups: list[str | None]


class Rows:
    """The tables in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def read(self, batch_id: str, start: int = 0, stop: int | None = None) -> StoredTable | None:
        """Reads the rows of neighbouring rollouts."""
        with store_errors():
            total, created = await self._redis.hmget(keys.batch(batch_id), "total", "created_ms")
            if total is None:
                return None
            indexes = range(max(start, 0), int(total) if stop is None else min(stop, int(total)))
            now = int(await now_ms(self._redis))
        rows: list[list[Any]] = []
        groups: list[str | None] = []
        for first in range(0, len(indexes), SLICE):
            await self._read_slice(batch_id, indexes[first : first + SLICE], rows, groups)
        return StoredTable(
            total=int(total),
            created_ms=int(created),
            now_ms=now,
            indexes=indexes,
            rows=rows,
            groups=groups,
        )

    async def some(self, batch_id: str, indexes: Sequence[int]) -> tuple[list[list[Any]], list[str | None]]:
        """Reads rows and groups of these rollouts; of at most `MAX_MADE` at a time, so that each has its row."""
        rows: list[list[Any]] = []
        groups: list[str | None] = []
        if indexes:
            await self._read_slice(batch_id, indexes, rows, groups)
        return rows, groups

    async def _read_slice(
        self, batch_id: str, indexes: Sequence[int], rows: list[list[Any]], groups: list[str | None]
    ) -> None:
        names = [str(index) for index in indexes]
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            for part in ("rows", "groups"):
                pipe.hmget(keys.batch(batch_id, part), names)
            stored, theirs = await pipe.execute()
        groups += [None if group is None else group.decode() for group in theirs]
        missing = [place for place, row in enumerate(stored) if row is None]
        some: list[list[Any]] = orjson.loads(b"[" + b",".join(row or b"null" for row in stored) + b"]")
        if missing:
            made = await self._unstored(batch_id, [indexes[place] for place in missing])
            for place, row in zip(missing, made, strict=True):
                some[place] = row
        rows += some

    async def _unstored(self, batch_id: str, indexes: list[int]) -> list[list[Any]]:
        """Makes rows of what is known of rollouts that have none."""
        rows: list[list[Any]] = []
        ended: list[int] = []
        for start in range(0, len(indexes), AT_ONCE):
            some = indexes[start : start + AT_ONCE]
            states = await self._connection.script("read_rollouts", batch_id, len(_LIVE), *_LIVE, *some)
            with store_errors():
                names = await self._redis.hmget(keys.batch(batch_id, "names"), [str(index) for index in some])
            for index, (status, attempt, worker, turns, claimed, stage), name in zip(some, states, names, strict=True):
                state = status_of(status, stage)
                if state.terminal:
                    ended.append(len(rows))
                rows.append(
                    _row(
                        claimed_ms=int(claimed) if claimed and status == b"running" else None,
                        status=state,
                        rollout_id=name.decode() if name is not None else keys.uid_of(batch_id, index),
                        turns=int(turns or 0),
                        attempt=int(attempt or 0),
                        worker=worker.decode() if worker is not None else None,
                    )
                )
        # It ended without a row, or a moment ago.
        for place in ended[:MAX_MADE]:
            rows[place] = await self._from_result(batch_id, indexes[place]) or rows[place]
        return rows

    async def _from_result(self, batch_id: str, index: int) -> list[Any] | None:
        uid = keys.uid_of(batch_id, index)
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.get(keys.rollout(uid, "result"))
            pipe.hmget(keys.rollout(uid), "ended", "claimed")
            result, times = await pipe.execute()
        if result is None:
            return None
        ended, claimed = (None if at is None else int(at) for at in times)
        return [ended, claimed, *row_values(RolloutResult.model_validate_json(expand(result)))]


def _row(**known: Any) -> list[Any]:
    row = [None] * len(_PLACE)
    for name, value in known.items():
        row[_PLACE[name]] = value
    return row
