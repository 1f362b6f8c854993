"""Totals: what the pool has done since its Redis was first used, and how much work waits.

A total only grows. The script that changes a state also counts it, so each event counts once, however many processes
and restarts there were. Totals outlive the batches that they count. Fields of the hash:

batches, accepted                batches and rollouts that were committed
status:{s}                       rollouts that ended so
failure:{kind}:{category}, alignment:{a}, warning:{w}    of ended rollouts
drift:{label}, turns             of model calls
sampled, tokens                  tokens with mask 1; all tokens of all samples
requeued:{r}                     rollouts that went back to the queue, by reason (`protocol/history.py`)
cancelled_for:{caller | lease | pause}    batches that were cancelled as a whole
republished, strays, workers_lost  what the reconciler mended
doubts                           shapes of deltas that were doubted (`doubts.py`)
group:{usable | dropped}             groups that got their verdict
refused:{cause}:{owner}              submits that had no fault (`errors.RefusalCause`)
{prefix}:{value}                     what capabilities count (`Counter` and `Total` of `capability.py`)
"""

from collections.abc import Mapping
from typing import NamedTuple

from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import to_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import RefusalCause, store_errors

_GAUGES = [gauge for capability in CAPABILITIES for gauge in capability.gauges]


class PoolStats(NamedTuple):
    """The totals, and how much work waits."""

    totals: dict[str, int]
    delayed: int
    """Queued rollouts that may not run yet: after a failure, or because their trainer is down."""
    dead_letters: int
    open: int
    """Rollouts that are accepted and have not ended."""
    oldest_ticket_s: dict[Priority, float]
    """How long the oldest published ticket has waited for a worker; 0 where there is none."""
    gauges: Mapping[str, int] = {}
    """What capabilities have at this moment, by the names of their gauges."""


class Totals:
    """The totals of one store."""

    def __init__(self, connection: Connection) -> None:
        self._redis = connection.redis

    async def note_refused(self, cause: RefusalCause, owner: str) -> None:
        """Counts a submit that was refused before it reached the script that counts it otherwise."""
        with store_errors():
            await self._redis.hincrby(keys.TOTALS, f"refused:{cause}:{owner}", 1)

    async def read(self) -> PoolStats:
        """Reads all of it in one round trip."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hgetall(keys.TOTALS)
            pipe.zcard(keys.DELAYED)
            pipe.llen(keys.DEAD)
            pipe.get(keys.OPEN)
            pipe.time()
            for gauge in _GAUGES:
                pipe.zcard(gauge.key)
            for priority in Priority:
                pipe.zrange(keys.published(priority), 0, 0, withscores=True)
            totals, delayed, dead, still_open, redis_time, *rest = await pipe.execute()
        now_ms, now_has, oldest = to_ms(redis_time), rest[: len(_GAUGES)], rest[len(_GAUGES) :]
        return PoolStats(
            totals={name.decode(): int(value) for name, value in totals.items()},
            delayed=delayed,
            dead_letters=dead,
            open=int(still_open or 0),
            gauges={gauge.name: n for gauge, n in zip(_GAUGES, now_has, strict=True)},
            oldest_ticket_s={
                priority: max(now_ms - found[0][1], 0.0) / 1000 if found else 0.0
                for priority, found in zip(Priority, oldest, strict=True)
            },
        )
