"""What processes and Redis use, looked at every ten seconds and noted as `sample`."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis.exceptions
from tests.chaos.cast import Cast
from tests.chaos.record import Record

ANSWER_SECONDS = 2.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Sampler:
    """The samples of one soak."""

    def __init__(self, cast: Cast, record: Record, every: float) -> None:
        """`every`: seconds between two samples."""
        self._cast = cast
        self._record = record
        self._every = every
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Ends."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep(self) -> None:
        while True:
            for name, pid in self._processes():
                with suppress(OSError):
                    self._record.write("sample", of=f"{name} {pid}", uses=_uses(pid), clock=time.monotonic())
            with suppress(redis.exceptions.RedisError, OSError, TimeoutError):
                # While Redis is paused, nothing is known about it.
                async with asyncio.timeout(ANSWER_SECONDS):
                    self._record.write("sample", of="redis", uses=await self._redis(), clock=time.monotonic())
            await asyncio.sleep(self._every)

    def _processes(self) -> list[tuple[str, int]]:
        """API processes, parents and normal workers; isolated ones come and go."""
        found = [(process.name, process.pid) for process in self._cast.apis if process.pid is not None]
        found += [(host.name, host.root.pid) for host in self._cast.hosts if host.root.pid is not None]
        return [*found, *((m.host + "/worker", m.pid) for m in self._cast.census.members if not m.isolated)]

    async def _redis(self) -> dict[str, float]:
        async with self._cast.client() as client:
            info: dict[str, Any] = await client.info()
            keys = await client.dbsize()
        return {"memory, MB": info["used_memory"] / 1e6, "clients": info["connected_clients"], "keys": keys}


def _uses(pid: int) -> dict[str, float]:
    proc = Path(f"/proc/{pid}")
    resident = int((proc / "statm").read_text().split()[1]) * PAGE_BYTES
    return {
        "memory, MB": resident / 1e6,
        "descriptors": len(os.listdir(proc / "fd")),
        "threads": len(os.listdir(proc / "task")),
    }
