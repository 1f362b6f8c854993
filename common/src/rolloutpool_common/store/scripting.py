"""Scripts: runs Lua scripts, and single commands, over one connection; what is large has another one.

1. A call is written down as Redis gets it, and goes to a sender (`sender.py`) with all others of this tick.
2. A call of more than `LARGE` bytes goes to a sender of its own: it would hold up the small ones behind it. That one
   keeps no connection.
3. A script is named by its hash. Where Redis doesn't know it, the call is sent again with the script's text.

Each call keeps its own answer and its own error, which is the store's (`errors.py`).
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from typing import Any

from rolloutpool_common.store.redis_compat import pack_command
from rolloutpool_common.store.sender import LARGE, Dial, Sender
from rolloutpool_common.store.store_call import StoreCall, StoreScript
from rolloutpool_common.store.write_waits import IdleTime

FRAME = 150
"""Bytes of a joined call beside its last two arguments, or a few more."""


class Scripts:
    """The scripts of one Redis; for one event loop."""

    def __init__(self, dial: Dial, sources: Mapping[str, str]) -> None:
        """Prepares without connecting; `sources` is Lua by the script's name."""
        self.idle = IdleTime()
        """While one of these calls had no answer."""
        self._small, self._large = Sender(dial, self.idle), Sender(dial, self.idle, keeps=False)
        self._scripts: dict[str, StoreScript] = {}
        for name, text in sources.items():
            self.add(name, name, text)

    def knows(self, key: str) -> bool:
        """Whether a script was added under this key."""
        return key in self._scripts

    def add(self, key: str, name: str, text: str) -> None:
        """Adds a script, or another text of one (`script_sources.py`); metrics show its name."""
        self._scripts[key] = StoreScript(name, text, hashlib.sha1(text.encode()).hexdigest())

    def run(self, name: str, args: tuple[Any, ...]) -> StoreCall:
        """Runs a script with these ARGV; the future has its answer, or a `StoreError` or `ResponseError`."""
        script = self._scripts[name]
        call = self._call(script.name, ("EVALSHA", script.sha, 0, *args))
        call.script, call.args = script, args
        return call

    def join(self, name: str, args: tuple[Any, ...]) -> StoreCall:
        """Runs a script as `run` does, together with all that are joined to it in this tick."""
        call = StoreCall(loop=asyncio.get_running_loop())
        call.name, call.begun, call.script, call.args = name, time.perf_counter(), self._scripts[name], args
        call.size = FRAME + len(args[-2]) + len(args[-1])
        (self._small if call.size <= LARGE else self._large).send(call)
        return call

    def command(self, *command: Any) -> asyncio.Future[Any]:
        """Runs a command, given as its name and arguments, as `run` does.

        It may reach Redis twice, so it must be one that reads, or changes nothing the second time.
        """
        return self._call("command", command)

    async def close(self) -> None:
        """Closes the connections; calls without an answer fail."""
        await asyncio.gather(self._small.close(), self._large.close())

    def _call(self, name: str, command: tuple[Any, ...]) -> StoreCall:
        call = StoreCall(loop=asyncio.get_running_loop())
        call.name, call.begun, call.data = name, time.perf_counter(), pack_command(command)
        call.size = len(call.data)
        (self._small if call.size <= LARGE else self._large).send(call)
        return call
