"""Sessions whose program is the test."""

from tests.support.harness import Dialect, DoorProcess, Program
from tests.support.pool import Pool

from rolloutpool_common.capabilities.harness.sessions import Sessions
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.protocol.result import RolloutResult

ASKS = {"harness": True}


class OpenedSession:
    """A session whose program is the test."""

    def __init__(self, pool: Pool, door: DoorProcess, uid: str, key: str) -> None:
        self.pool, self.uid, self.key = pool, uid, key
        self.url = f"{door.url}/s/{uid}"

    def program(self, dialect: Dialect = "chat", **options: object) -> Program:
        return Program(self.url, self.key, dialect, **options)  # type: ignore[arg-type]

    async def end(self, reward: float | None = 1.0) -> RolloutResult:
        assert await Sessions(self.pool.store).end(self.uid, SessionEnd(reward=reward)) == "ok"
        await self.pool.publisher.pump()
        return await self.pool.result(self.uid)


async def opened(
    pool: Pool,
    door: DoorProcess,
    led_url: str,
    *,
    protocol: str = "callback",
    max_tokens_total: int = 100_000,
    **choice: object,
) -> OpenedSession:
    harness = {"external": True, **choice}
    shared = {"server_url": led_url, "harness": harness, "max_tokens_total": max_tokens_total, "protocol": protocol}
    (uid,) = await pool.submit(shared=shared, asks=ASKS)
    found = await Sessions(pool.store).open(uid)
    assert found is not None
    return OpenedSession(pool, door, uid, await Sessions(pool.store).key(found))
