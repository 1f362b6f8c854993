"""Scripts: runs Lua scripts, and single commands, so that calls which are made together travel together.

A hundred rollouts in flight make their calls at the same moments. One round trip for all calls that wait costs a third
of one round trip each, in this process and in Redis, which also writes to disk once for all of them. At any moment
there are two states:

1. Idle: no sender runs. A call starts one.
2. Busy: a sender runs. Calls that are made meanwhile wait. When the sender has its answers, it sends all that wait by
   then, at most `AT_ONCE`, and so on; when none waits, the state is idle again.

A connection that hangs must not hold up the calls that wait. Therefore a sender that has no answers after
`OVERTAKE_SECONDS` is overtaken: a new sender takes over the calls that wait, on another connection, and the old one
ends with the calls that it has sent.

Example: 100 rollouts claim at once. The first call starts a sender, the others wait; the sender's second round trip
carries all 99 of them.

Each call keeps its own answer and its own error. A broken connection is an error of all calls that travelled on it.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

from rolloutpool_common.process.metrics import STORE_SECONDS
from rolloutpool_common.store.redis_compat import Exchange

__all__ = ["Scripts"]

COMMAND = "command"
"""Stands in metrics for what is no script."""
AT_ONCE = 128
"""Calls per round trip."""
OVERTAKE_SECONDS = 0.25
"""A round trip takes milliseconds; after this time a connection counts as hanging."""


class _Call(NamedTuple):
    script: str | None
    """The name of its script; None for a command."""
    command: tuple[Any, ...]
    """As Redis gets it."""
    answer: asyncio.Future[Any]
    begun: float
    """On the clock of `time.perf_counter`."""


class Scripts:
    """The scripts of one Redis client; for one event loop."""

    def __init__(self, redis: Any, sources: Mapping[str, str]) -> None:
        """Prepares without connecting.

        Args:
            redis: the client.
            sources: Lua by the script's name.
        """
        self._redis = redis
        self._exchange = Exchange(redis)
        self._sources = sources
        self._hashes = {name: hashlib.sha1(source.encode()).hexdigest() for name, source in sources.items()}
        self._waiting: list[_Call] = []
        # None is the idle state. A sender that was overtaken is no longer here.
        self._sender: asyncio.Task[None] | None = None
        # The event loop itself keeps only weak references to tasks.
        self._senders: set[asyncio.Task[None]] = set()

    async def run(self, name: str, args: tuple[Any, ...]) -> Any:
        """Runs a script.

        Args:
            name: of the script.
            args: its ARGV.

        Returns:
            The script's answer.

        Raises:
            redis.exceptions.RedisError: whatever redis-py raises.
        """
        return await self._call(name, ("EVALSHA", self._hashes[name], 0, *args))

    async def command(self, *command: Any) -> Any:
        """Runs a command, given as its name and arguments; answers and raises as `run` does.

        It may reach Redis twice, so it must be one that reads, or changes nothing the second time.
        """
        return await self._call(None, command)

    def _call(self, script: str | None, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(script, command, answer, time.perf_counter()))
        if self._sender is None:
            self._start_sender()
        return answer

    def _start_sender(self) -> None:
        sender = self._sender = asyncio.create_task(self._send_waiting())
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _send_waiting(self) -> None:
        me = asyncio.current_task()
        try:
            while self._waiting and self._sender is me:
                # A caller that gave up has cancelled its future; its call is not sent.
                calls = [call for call in self._waiting[:AT_ONCE] if not call.answer.done()]
                del self._waiting[:AT_ONCE]
                overtake = asyncio.get_running_loop().call_later(OVERTAKE_SECONDS, self._overtake)
                try:
                    await self._answer(calls)
                finally:
                    overtake.cancel()
                # The callers that have their answers now make their next calls, which travel together too.
                await asyncio.sleep(0)
        finally:
            # Where this sender ends by an error or a cancellation, calls may still wait.
            if self._sender is me:
                self._overtake()

    def _overtake(self) -> None:
        """Leaves the busy state, and enters it anew with another sender where calls wait."""
        self._sender = None
        if self._waiting:
            self._start_sender()

    async def _answer(self, calls: Sequence[_Call]) -> None:
        try:
            answers = await self._send(calls)
            unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if unknown:
                # Redis forgets scripts when it restarts. These calls did nothing, so they may be sent again.
                for name in {name for n in unknown if (name := calls[n].script) is not None}:
                    await self._redis.script_load(self._sources[name])
                again = await self._send([calls[n] for n in unknown])
                for n, answer in zip(unknown, again, strict=True):
                    answers[n] = answer
        except Exception as error:
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)
            return
        except asyncio.CancelledError:
            for call in calls:
                call.answer.cancel()
            raise
        now = time.perf_counter()
        for call, answer in zip(calls, answers, strict=True):
            STORE_SECONDS.observe(now - call.begun, call.script or COMMAND)
            # A caller that was cancelled has cancelled its future.
            if call.answer.done():
                continue
            if isinstance(answer, Exception):
                call.answer.set_exception(answer)
            else:
                call.answer.set_result(answer)

    async def _send(self, calls: Sequence[_Call]) -> list[Any]:
        return await self._exchange.send([call.command for call in calls])
