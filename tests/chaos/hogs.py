"""CPU hogs: busy loops beside a campaign, at the same priority as what it measures."""

import asyncio
import os
import sys

from rolloutpool_common.process import launch

__all__ = ["Hogs"]


class Hogs:
    """So many processes that do nothing but want the CPU; they die with this process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        """Starts all of them."""
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), "0"]
        for _ in range(self._count):
            command = [*launcher, sys.executable, "-I", "-S", "-c", "while True: pass"]
            self._processes.append(await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL))

    async def stop(self) -> None:
        """Ends all of them."""
        for process in self._processes:
            process.kill()
            await process.wait()
        self._processes.clear()
