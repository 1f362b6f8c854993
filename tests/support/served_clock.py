"""The served clock, which a test lets go on as the reconciler does."""

from redis.asyncio import Redis
from tests.support.waiting import until

from rolloutpool_common.store import Store


class ServedClock:
    """Ticks as the reconciler does, on a Redis clock that the test moves."""

    def __init__(self, store: Store, process: str = "p1") -> None:
        self._store, self._process = store, process

    async def tick(self, passed_s: float = 0.0, *, serving: bool = True) -> list[str]:
        """A tick after so much time of Redis' clock."""
        redis = self._store.connection.redis
        seen = await redis.hget("rp:served", "seen_ms")
        if seen is not None:
            await redis.hset("rp:served", "seen_ms", int(int(seen) - passed_s * 1000))
        return await self._store.leases.tick(self._process, serving=serving)

    async def seconds(self, seconds: float) -> list[str]:
        """So many seconds in which nothing is amiss; the batches whose lease was over."""
        return [batch for _ in range(int(seconds)) for batch in (await self.tick(1.0))]


async def let_a_week_pass(redis_url: str) -> None:
    """Moves the served clock of a running API by a week, as if nobody had spoken for so long."""
    async with Redis.from_url(redis_url) as raw:

        async def ticking() -> bool:
            return bool(await raw.hexists("rp:served", "of"))

        await until(ticking)
        await raw.hset("rp:served", mapping={"clock_ms": 7 * 86_400_000, "quiet_ms": 0})
