"""CPU hogs: busy loops beside a campaign, at the same priority as what it measures.

Each is in a session of its own, as the processes of the campaign are. Linux shares the CPU out among sessions first
(autogroup), so eight hogs of one session would together weigh no more than one process of the pool.
"""

import asyncio
import os
import sys

from tests.chaos.priority import niceness

from rolloutpool_common.process import launch


class Hogs:
    """So many processes that do nothing but want the CPU; they die with this process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        """Starts all of them."""
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(niceness())]
        for _ in range(self._count):
            command = [*launcher, sys.executable, "-I", "-S", "-c", "while True: pass"]
            hog = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
            self._processes.append(hog)

    async def stop(self) -> None:
        """Ends all of them."""
        for process in self._processes:
            process.kill()
            await process.wait()
        self._processes.clear()
