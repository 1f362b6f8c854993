"""A replica and a Sentinel beside a campaign's Redis, and links that lead to whichever server is the primary.

Clients of Redis that know nothing of Sentinel reach the primary over a proxy that asks it. Here the links are that
proxy: when Sentinel names another primary, they lead there and cut what leads elsewhere.
"""

import asyncio
import signal
from contextlib import suppress

import redis.asyncio
import redis.exceptions
from tests.chaos import sockets
from tests.chaos.cast import Cast
from tests.chaos.process import Process
from tests.chaos.record import Record
from tests.support.waiting import until

from rolloutpool_trainer.local.redis_server import find_server

__all__ = ["Failover"]

NAME = "pool"
DOWN_MS = 1000
"""For so long the primary does not answer before it is called down."""
LOOK_SECONDS = 0.1
WAIT_SECONDS = 60.0


class Failover:
    """What takes over from the Redis of a cast."""

    def __init__(self, cast: Cast, record: Record) -> None:
        """Starts nothing yet; the cast's Redis must be running when `start` is called."""
        self._cast = cast
        self._record = record
        ports = sockets.lasting_ports()
        self._replica_port, self._sentinel_port = next(ports), next(ports)
        (cast.folder / "replica").mkdir()
        (cast.folder / "sentinel").mkdir()
        config = cast.folder / "sentinel" / "sentinel.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self._sentinel_port}\ndir {config.parent}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {cast.redis_port} 1\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\n"
            f"sentinel failover-timeout {NAME} 10000\n"
        )
        replica = [find_server(), *cast.redis_options(self._replica_port, "replica")]
        self._processes = [
            Process("replica", [*replica, "--replicaof", "127.0.0.1", str(cast.redis_port)], {}, cast.folder, _ignore),
            Process("sentinel", [find_server(), str(config), "--sentinel"], {}, cast.folder, _ignore),
        ]
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the replica has what the primary has, and Sentinel knows of it."""
        for process in self._processes:
            process.start()
        await until(self._is_ready, WAIT_SECONDS)
        self._following = asyncio.create_task(self._follow())

    async def fail_over(self) -> None:
        """Loses the primary for good; returns when the links lead to the replica."""
        self._record.write("fault", kind="fail-over", target="redis")
        await self._cast.redis.stop(signal.SIGKILL)

        async def moved() -> bool:
            return self._cast.redis_port == self._replica_port

        await until(moved, WAIT_SECONDS)

    async def stop(self) -> None:
        """Ends both processes."""
        if self._following is not None:
            self._following.cancel()
        for process in self._processes:
            await process.stop()

    async def _is_ready(self) -> bool:
        with suppress(redis.exceptions.RedisError, OSError):
            async with redis.asyncio.Redis(port=self._replica_port) as replica:
                info = await replica.info("replication")
            async with redis.asyncio.Redis(port=self._sentinel_port) as sentinel:
                known = await sentinel.execute_command("SENTINEL", "REPLICAS", NAME)  # type: ignore[no-untyped-call]
            return bool(info["master_link_status"] == "up" and known)
        return False

    async def _follow(self) -> None:
        async with redis.asyncio.Redis(port=self._sentinel_port) as sentinel:
            while True:
                _, port = await sentinel.execute_command(  # type: ignore[no-untyped-call]
                    "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME
                )
                if int(port) != self._cast.redis_port:
                    self._cast.redis_moved(int(port))
                    self._record.write("over", kind="fail-over", target="redis")
                await asyncio.sleep(LOOK_SECONDS)


def _ignore(_: Process, __: int) -> None:
    """Neither is expected to end."""
