"""A child process that is started again whenever it ends, by whatever means, until it is stopped for good.

It dies with this process, even by kill -9, as do the children of the pool's own supervisor.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.chaos.priority import niceness, prefer

from rolloutpool_common.process import launch

PAUSE = 0.3
"""Seconds from an end to the next start: long enough for a port to be free, short enough to be always busy."""
STEADY = 4.0
"""Seconds after which a process counts as doing its work."""
_FAILPOINT = re.compile(rb"^failpoint (\S+)$", re.MULTILINE)


class Process:
    """One supervised process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        on_end: Callable[["Process", int], None],
        *,
        preferred: bool = False,
    ) -> None:
        """Not started yet. `on_end(process, exit code)` is called at each end; `preferred` before the pool and hogs."""
        self.name = name
        self.pid: int | None = None
        """None while it does not run."""
        self.log = folder / f"{name}.log"
        self._command, self._env, self._preferred = command, env, preferred
        self._since = 0.0
        self._on_end = on_end
        self.ending = False
        """Whether it is being stopped for good."""
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether it has run for long enough to be worth hurting."""
        return self.pid is not None and time.monotonic() - self._since > STEADY

    def start(self) -> None:
        """Starts it, and again from now on."""
        self._task = asyncio.create_task(self._keep(), name=self.name)

    def send(self, number: signal.Signals) -> bool:
        """Whether there was a process to send it to. To the process alone, as an operator or the kernel would."""
        if self.pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return True

    async def stop(self, number: signal.Signals = signal.SIGTERM, patience: float = 20.0) -> None:
        """Ends it for good."""
        self.ending = True
        if self._task is None:
            return
        self.send(signal.SIGCONT)
        self.send(number)
        _, late = await asyncio.wait({self._task}, timeout=patience)
        if late:
            self.send(signal.SIGKILL)
            await self._task

    async def _keep(self) -> None:
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(niceness())]
        while not self.ending:
            with self.log.open("ab") as log:
                child = await asyncio.create_subprocess_exec(
                    *launcher,
                    *self._command,
                    env={**os.environ, **self._env},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            if self._preferred:
                prefer(child.pid)
            self.pid, self._since = child.pid, time.monotonic()
            code = await child.wait()
            self.pid = None
            self._on_end(self, code)
            if not self.ending:
                await asyncio.sleep(PAUSE)

    def failpoints(self) -> list[str]:
        """The failpoints at which it, or a child that shares its log, has ended until now."""
        return [name.decode() for name in _FAILPOINT.findall(self.log.read_bytes())] if self.log.exists() else []
