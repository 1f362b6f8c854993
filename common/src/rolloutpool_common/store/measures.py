"""PoolMeasures: sums of what all processes have measured, and what each of them is at this moment.

1. Every few seconds a process sends a report: the increments since its last one, and its standing (memory, waits).
   `report.lua` adds the increments to `rp:measures`, those of one endpoint to `rp:measures:{endpoint}`.
2. A report has a number. A process whose report was not answered sends the same one again, and it is added once.
3. The standing of a process is forgotten 30 s after its last report, or when it leaves. The sums stay.
4. At most `MOST_ENDPOINTS` endpoints have sums of their own; an endpoint that was not called for an hour makes room.

A process that dies loses what it measured since its last report: statistics, and nothing that is counted elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.redis_settings import read_info

MOST_ENDPOINTS = 20
IDLE_SECONDS = 3600.0
GONE_SECONDS = 30.0

MeasureRow = tuple[str, str, int]
"""Endpoint or "", field, increment."""


class RedisFacts(NamedTuple):
    """Holds what Redis says of itself; 0 where this account may not ask."""

    memory_bytes: int
    memory_limit_bytes: int
    """0 means that there is none."""
    aof_delayed_fsyncs: int


class Measured(NamedTuple):
    """All of it, at one moment."""

    sums: dict[str, dict[str, int]]
    """By endpoint, then by field; the endpoint "" stands for what has none."""
    standings: list[dict[str, Any]]
    """What each process said of itself."""
    redis: RedisFacts
    has_leader: bool
    """Whether some process reconciles."""


class PoolMeasures:
    """The measures of one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def report(self, process: str, number: int, standing: Mapping[str, Any], rows: Sequence[MeasureRow]) -> None:
        """Adds a report."""
        await self._connection.script(
            *("report", process, number, orjson.dumps(standing), int(GONE_SECONDS * 1000), MOST_ENDPOINTS),
            *(int(IDLE_SECONDS * 1000), *(part for row in rows for part in row)),
        )

    async def leave(self, process: str) -> None:
        """Forgets the standing of a process that ends."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.zrem(keys.PROCESSES, process)
            pipe.unlink(keys.process(process))
            await pipe.execute()

    async def read(self) -> Measured:
        """Reads all of it, in two round trips."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zrange(keys.ENDPOINTS, 0, -1)
            pipe.zrange(keys.PROCESSES, 0, -1)
            pipe.exists(keys.LEADER)
            endpoints, processes, leader = await pipe.execute()
            names = ["", keys.OTHER_ENDPOINTS, *(endpoint.decode() for endpoint in endpoints)]
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hgetall(keys.measures(name))
            for process in processes:
                pipe.hget(keys.process(process.decode()), "standing")
            found = await pipe.execute()
        memory = await read_info(self._redis, "memory")
        persistence = await read_info(self._redis, "persistence")
        return Measured(
            sums={
                name: {field.decode(): int(n) for field, n in fields.items()}
                for name, fields in zip(names, found, strict=False)
            },
            # One of them may have expired between the two reads.
            standings=[orjson.loads(standing) for standing in found[len(names) :] if standing is not None],
            redis=RedisFacts(
                int(memory.get("used_memory", 0)),
                int(memory.get("maxmemory", 0)),
                int(persistence.get("aof_delayed_fsync", 0)),
            ),
            has_leader=bool(leader),
        )
