"""Scripts: runs Lua scripts, and single commands, over one connection; what is large has another one.

1. A call is written down as Redis gets it, and goes to a sender (`sender.py`) with all others of this tick.
2. A call of more than `LARGE` bytes goes to a sender of its own: it would hold up the small ones behind it.
3. A script is named by its hash. Where Redis doesn't know it, the call is sent again with the script's text.

Each call keeps its own answer and its own error, which is the store's (`errors.py`).
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from typing import Any

from rolloutpool_common.store.line import StoreCall
from rolloutpool_common.store.redis_compat import pack_command
from rolloutpool_common.store.sender import Dial, Sender

__all__ = ["LARGE", "Scripts"]

COMMAND = "command"
"""Stands in metrics for what is no script."""
LARGE = 64 * 1024
"""Bytes."""


class Scripts:
    """The scripts of one Redis; for one event loop."""

    def __init__(self, dial: Dial, sources: Mapping[str, str]) -> None:
        """Prepares without connecting; `sources` is Lua by the script's name."""
        self._small, self._large = Sender(dial), Sender(dial)
        self._sources = sources
        self._hashes = {name: hashlib.sha1(source.encode()).hexdigest() for name, source in sources.items()}

    def run(self, name: str, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Runs a script with these ARGV; the future has its answer, or a `StoreError` or `ResponseError`."""
        return self._send(name, (self._sources[name], args), ("EVALSHA", self._hashes[name], 0, *args))

    def command(self, *command: Any) -> asyncio.Future[Any]:
        """Runs a command, given as its name and arguments, as `run` does.

        It may reach Redis twice, so it must be one that reads, or changes nothing the second time.
        """
        return self._send(COMMAND, None, command)

    async def close(self) -> None:
        """Closes the connections; calls without an answer fail."""
        await asyncio.gather(self._small.close(), self._large.close())

    def _send(
        self, name: str, script: tuple[str, tuple[Any, ...]] | None, command: tuple[Any, ...]
    ) -> asyncio.Future[Any]:
        call = StoreCall(loop=asyncio.get_running_loop())
        call.name, call.begun, call.script = name, time.perf_counter(), script
        data = call.data = pack_command(command)
        (self._small if len(data) <= LARGE else self._large).send(call)
        return call
