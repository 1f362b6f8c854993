"""Isolated tools: each call runs in a child process with limits, so that nothing that a tool does harms its worker.

1. A tool is declared isolated: `@tool(…, isolated=Isolated(memory_mb=256, seconds=5))`.
2. At its first call a child is started (`child.py`). It is a new interpreter (`spawn`), so it has nothing of the
   worker: no threads, no connections, no open files but a pipe. It imports the tool's module.
3. A child answers the calls of one tool, one after the other; a call that finds no free one starts another. A worker
   has `places` children at the most (`ROLLOUTPOOL_ISOLATED_TOOLS`); further calls wait for a place. Their time limit
   begins when they have one.
4. A call that takes too long, or whose rollout was cancelled, is ended by killing its child. A child that dies, takes
   too much memory or ends itself costs its own call and no other. In each case the policy reads why.
5. A child that has been idle for `IDLE_SECONDS` ends. All end with the worker, at the latest by the kernel's hand.

For example, two rollouts call `run_code` at once: two children. One of them has a segmentation fault, and its policy
reads "Error: run_code was ended by SIGSEGV". The other child answers, and is there for the next call.

This keeps mistakes in, not attackers: a child has its worker's user, files, network and environment
(docs/decisions/0009).
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.logs import log_event
from rolloutpool_worker.tools.base import FAILED, Isolated, Tool, ToolAnswer, ToolContext, timed_out
from rolloutpool_worker.tools.child import EXIT_MEMORY, ToolAddress, ToolCallRequest, ToolReply, serve_calls

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SPAWN = multiprocessing.get_context("spawn")

START_SECONDS = 60.0
"""For a child's start, with all that the tool's module imports; it is no part of a call's time."""
IDLE_SECONDS = 300.0
"""After so long without a call a child gives its memory back."""


class IsolatedEnd(RolloutPoolError):
    """A call in a child process got no answer."""

    def __init__(self, message: str, cause: str, why: str | None = None) -> None:
        """Says what a policy reads, and what people read."""
        super().__init__(message)
        self.cause = cause
        self.why = message.removeprefix("Error: ") if why is None else why


class NoPlace(RolloutPoolError):
    """All child processes are busy, and have been for as long as the caller waits."""


class _Child:
    """One child process."""

    def __init__(self, tool: Tool, isolated: Isolated) -> None:
        self.tool = tool.name
        self.memory_mb = isolated.memory_mb
        self.ready = False
        self.idle_until: asyncio.TimerHandle | None = None
        self.ending: asyncio.Task[int] | None = None
        self._in_use = threading.Lock()
        self.pipe, there = _SPAWN.Pipe()
        source = ToolAddress(tool.run.__module__, tool.run.__qualname__)
        # Here on the loop and not in a thread: for the kernel the child's parent is the thread that starts it, and the
        # child ends with that thread.
        self.process = _SPAWN.Process(
            target=serve_calls, args=(there, source, isolated.memory_mb, os.getpid()), name=f"tool {tool.name}"
        )
        try:
            self.process.start()
        finally:
            # The child has its own. With this one open, its end would not be seen.
            there.close()

    def exchange(self, request: ToolCallRequest | None) -> ToolReply:
        """Sends a request, if there is one, and waits for a reply; blocks. Raises OSError or EOFError at its end."""
        with self._in_use:
            if request is not None:
                self.pipe.send(request)
            reply: ToolReply = self.pipe.recv()
            return reply

    def kill(self) -> None:
        """Ends it, with all that the tool has started, and frees the thread that waits for it."""
        assert self.process.pid is not None
        # Until it leads a group of its own, only the process itself can be killed.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        # A process that has left the group may still hold the child's end, so its closing alone may not be seen.
        with suppress(OSError), socket.socket(fileno=os.dup(self.pipe.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def reap(self) -> int:
        """Waits for its end, and closes what is left; returns the exit code."""
        self.process.join()
        # Each start of a process reaps those that have ended. Where that came first, the code arrives a moment later.
        while (code := self.process.exitcode) is None:
            time.sleep(0.001)
        with self._in_use:
            self.process.close()
            self.pipe.close()
        return code


class IsolatedTools:
    """The children of one worker process."""

    def __init__(self, places: int) -> None:
        """Starts nothing yet."""
        self._most = places
        self._places = asyncio.Semaphore(places)
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []
        """The one that was used last is at the end."""
        # Waiting for a child blocks. Other work of the process must not wait for threads that tools hold.
        self._threads = ThreadPoolExecutor(places, thread_name_prefix="isolated-tool")

    def __len__(self) -> int:
        """How many children there are."""
        return len(self._children)

    async def call(
        self, tool: Tool, context: ToolContext, arguments: Any, *, seconds: float, result_bytes: int
    ) -> ToolAnswer:
        """Runs a call in a child, as soon as there is a place."""
        try:
            reply = await self.reply(tool, context, arguments, seconds=seconds, result_bytes=result_bytes)
        except IsolatedEnd as end:
            return ToolAnswer(end.message, error=end.cause)
        if reply.raised is not None:
            return ToolAnswer(FAILED, error=reply.raised.type, raised=reply.raised)
        return ToolAnswer(reply.text, cut=reply.cut)

    async def reply(
        self,
        tool: Tool,
        context: ToolContext,
        arguments: Any,
        *,
        seconds: float,
        result_bytes: int,
        place_seconds: float | None = None,
    ) -> ToolReply:
        """As `call`, for those who must tell a result from a failure."""
        try:
            async with asyncio.timeout(place_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise NoPlace from None
        try:
            return await self._reply(tool, context, arguments, seconds, result_bytes)
        finally:
            self._places.release()

    async def _reply(
        self, tool: Tool, context: ToolContext, arguments: Any, seconds: float, result_bytes: int
    ) -> ToolReply:
        isolated = tool.isolated
        assert isolated is not None
        seconds = min(seconds, isolated.seconds or seconds)
        request = ToolCallRequest(tool.name, context, arguments, result_bytes)
        child = await self._take(tool, isolated)
        reply: ToolReply | None = None
        try:
            if not child.ready:
                refused = await self._wait(START_SECONDS, lambda: child.exchange(None))
                if refused.text:
                    _log.error("isolated tool %s: %s", tool.name, refused.text)
                    raise IsolatedEnd(FAILED, "ImportError", refused.text)
                child.ready = True
            reply = await self._wait(seconds, lambda: child.exchange(request))
            return reply
        except TimeoutError:
            limit = seconds if child.ready else START_SECONDS
            log_event(_log, logging.WARNING, "isolated tool ended", tool=tool.name, why=f"no answer within {limit:g} s")
            raise IsolatedEnd(timed_out(limit), "TimeoutError", f"no answer within {limit:g} s") from None
        except (EOFError, OSError):
            raise _end_of(child, await self._end(child)) from None
        finally:
            if reply is None or reply.worn or child.ending is not None:
                await self._end(child)
            else:
                self._rest(child)

    async def close(self) -> None:
        """Ends all children, and returns when the system has forgotten them."""
        await asyncio.gather(*(self._end(child) for child in list(self._children)))
        self._threads.shutdown(wait=False)

    async def _take(self, tool: Tool, isolated: Isolated) -> _Child:
        """Returns a child that is free; starts one if there is none."""
        found = next((child for child in reversed(self._idle) if child.tool == tool.name), None)
        if found is not None:
            self._wake(found)
            # The kernel may have ended it meanwhile, because memory ran out.
            if found.process.is_alive():
                return found
            await self._end(found)
        # The caller has a place, so if all children exist, one of them is idle.
        if len(self._children) >= self._most:
            await self._end(self._idle[0])
        child = _Child(tool, isolated)
        self._children.add(child)
        return child

    async def _wait(self, seconds: float, blocking: Callable[[], T]) -> T:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(self._threads, blocking)

    def _rest(self, child: _Child) -> None:
        self._idle.append(child)
        loop = asyncio.get_running_loop()
        child.idle_until = loop.call_later(IDLE_SECONDS, lambda: loop.create_task(self._end(child)))

    def _wake(self, child: _Child) -> None:
        self._idle.remove(child)
        assert child.idle_until is not None
        child.idle_until.cancel()

    async def _end(self, child: _Child) -> int:
        """Kills a child, and returns its exit code; harmless where that was done before."""
        if child.ending is None:
            if child in self._idle:
                self._wake(child)
            self._children.discard(child)
            child.kill()
            # Not in the threads of this object: one of them may be waiting for this very child.
            child.ending = asyncio.create_task(asyncio.to_thread(child.reap))
        return await asyncio.shield(child.ending)


def _end_of(child: _Child, code: int) -> IsolatedEnd:
    """Says what became of a child that has ended during a call."""
    if code == EXIT_MEMORY:
        cause, why = "MemoryError", f"was ended: it used more than {child.memory_mb} MB"
    elif code < 0:
        cause = signal.Signals(-code).name
        why = f"was ended by {cause}"
    else:
        cause, why = "exit", f"ended its process with exit code {code}"
    log_event(_log, logging.WARNING, "isolated tool ended", tool=child.tool, why=why)
    return IsolatedEnd(f"Error: {child.tool} {why}", cause)
