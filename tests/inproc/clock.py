"""The loop of a whole pool: its time passes when nothing is left to do, and its parts can be killed.

1. **Time.** `Clock.install` puts a virtual clock in the place of `time.time`, `time.monotonic` and `time.perf_counter`,
   for all code of this process that is imported later. Where the loop would wait for its next timer, the clock goes on
   to it. Redis' TIME in scripts follows, because fakeredis asks `time.time`. With a real Redis there is no such clock.
2. **Processes.** A `Process` stands for one process of a pool. What its tasks begin belongs to it, by their context.
   `kill` drops all that belongs to it from the loop: no `except` and no `finally` of it ever runs, as after kill -9.
3. **Threads.** There are none: `run_in_executor` calls the function at once, or the clock would run away meanwhile.
4. **Network.** A connection to a host in `PoolLoop.hosts` is made in memory.

Chance is seeded as well (`seed_chance`), so that a history is the same when it is run again.
"""

import asyncio
import os
import random
import selectors
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
EPOCH = 1_800_000_000.0
"""When virtual time begins, in seconds since 1970."""
seconds = time.perf_counter
_sleep = time.sleep
"""The real clock."""
_process: ContextVar["Process | None"] = ContextVar("process", default=None)


class Stalled(BaseException):
    """No timer and no callback is left, so what is awaited will never happen."""


class Killed(BaseException):
    """Leaves the code of a process that was killed while it ran. Nothing awaits it."""


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def install(self) -> None:
        """Makes this the time of the process. To be called before modules are imported that keep the functions."""
        time.time = lambda: EPOCH + self.now
        time.time_ns = lambda: int((EPOCH + self.now) * 1e9)
        time.monotonic = lambda: self.now
        time.perf_counter = lambda: self.now


def seed_chance(seed: int) -> None:
    """Makes all chance of this process follow from a seed: identifiers and tokens as well."""
    random.seed(seed)
    source = random.Random(f"{seed} of the system")
    os.urandom = source.randbytes
    uuid.uuid4 = lambda: uuid.UUID(bytes=source.randbytes(16), version=4)


def current() -> "Process | None":
    """The process whose code runs."""
    return _process.get()


class Process:
    """One process of a pool: its tasks, and its connections."""

    def __init__(self, name: str, loop: "PoolLoop") -> None:
        """Runs nothing yet."""
        self.name = name
        self.dead = self.frozen = False
        self._held: list[tuple[Context, Callable[..., object], tuple[Any, ...]]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        """All of them, as long as it lives or its remains are kept."""
        self.closers: list[Callable[[], None]] = []
        """What the system does when the process has ended: it closes its connections."""
        self.on_death: list[Callable[[], None]] = []
        self._loop = loop

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins a task of this process."""
        return self._context().run(self._loop.create_task, work)

    def kill(self) -> None:
        """Ends it at once. Returns, where its own code has called this; raise `Killed` then."""
        if self.dead:
            return
        self.dead = True
        self._loop.remains.append(self)
        for close in (*self.closers, *self.on_death):
            self._loop.outside.copy().run(close)

    def freeze(self, seconds: float) -> None:
        """Stops it for a time, as SIGSTOP does: its connections stand, and nothing of it runs."""
        if not self.frozen:
            self.frozen = True
            self._loop.call_later(seconds, self._thaw, context=self._loop.outside)

    def run(self, context: Context, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Calls a callback: not where it has been killed since it was scheduled, and later where it is frozen."""
        if self.frozen:
            self._held.append((context, callback, args))
        elif not self.dead:
            callback(*args)

    def _thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for context, callback, args in held:
            self._loop.call_soon(callback, *args, context=context)

    def _context(self) -> Context:
        context = self._loop.outside.copy()
        context.run(_process.set, self)
        return context


class _NeverWaits(selectors.DefaultSelector):
    """Moves the clock on instead of waiting."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout != 0:
            if timeout is None:
                raise Stalled
            self._clock.now += timeout
        return events


class PoolLoop(asyncio.SelectorEventLoop):
    """The loop; without a clock its time is real."""

    def __init__(self, clock: Clock | None) -> None:
        super().__init__(None if clock is None else _NeverWaits(clock))
        self.clock = clock
        self.outside = copy_context()
        """The context of what belongs to no process: Redis, the broker, the trainer, and the test itself."""
        self.hosts: dict[str, Callable[[asyncio.BaseProtocol], asyncio.Transport]] = {}
        """What a connection to a host is."""
        self.remains: list[Process] = []
        """Processes that were killed. Their tasks must not be collected: that would run what the kill has skipped."""

    def time(self) -> float:
        """Seconds."""
        return super().time() if self.clock is None else self.clock.now

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Makes a task of the current process."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        process = _process.get()
        if process is not None:
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard)
        return task

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As ever, for the living."""
        context = copy_context() if context is None else context
        process = context.get(_process)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.run, context, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As ever, for the living; without a thread to wake where time is virtual."""
        if self.clock is not None:
            return self.call_soon(callback, *args, context=context)
        context = copy_context() if context is None else context
        process = context.get(_process)
        if process is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon_threadsafe(process.run, context, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As ever, for the living."""
        context = copy_context() if context is None else context
        process = context.get(_process)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.run, context, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Calls the function now."""
        del executor
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connects in memory, or as ever; the connection ends with the process."""
        opener, process = self.hosts.get(host), _process.get()
        if opener is not None:
            protocol = protocol_factory()
            transport = opener(protocol)
            protocol.connection_made(transport)
            return transport, protocol
        transport, protocol = await super().create_connection(protocol_factory, host, port, **options)
        if process is not None:
            process.closers.append(transport.abort)
        return transport, protocol

    def bury(self) -> None:
        """Forgets the remains of all processes. What their code still does then reaches nobody."""
        self.remains.clear()

    def context_of(self, process: Process | None) -> Context:
        """A context in which code of this process runs."""
        context = self.outside.copy()
        context.run(_process.set, process)
        return context
