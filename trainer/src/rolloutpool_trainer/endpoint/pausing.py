"""Holds an endpoint's sampling while the trainer updates the weights.

1. `pause` closes the gate: turns that come now wait in front of it. It returns when no turn is being sampled any more.
2. The trainer updates the weights.
3. `resume` opens the gate, and all that wait are sampled.

Turns run on the endpoint's event loop, the trainer in a thread of its own, so the gate is shared by threads. Its lock
is held for a few instructions only, never while something is sampled.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SamplingGate:
    """Counts the turns that are being sampled, and keeps new ones out while it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._sampling = 0
        self._held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where turns are sampled; known since the first one."""

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Waits until the gate is open, and counts a turn as being sampled until the block ends."""
        while not self._enter():
            loop, opened = asyncio.get_running_loop(), asyncio.Event()
            with self._changed:
                # It may have been opened since `_enter`; then nobody would set the event.
                if not self._closed:
                    continue
                self._held.append((loop, opened))
            await opened.wait()
        try:
            yield
        finally:
            with self._changed:
                self._sampling -= 1
                self._changed.notify_all()

    def close(self, timeout: float | None) -> None:
        """Closes the gate and waits until no turn is being sampled.

        Raises:
            RuntimeError: It was called on the event loop that samples, which it would stop.
            TimeoutError: Turns are still being sampled after `timeout` seconds. The gate is open again.
        """
        if self._loop is not None and self._loop is _running_loop():
            raise RuntimeError("pause() would block the loop that samples; call it in a thread: asyncio.to_thread")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._closed = True
            while self._sampling:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._open()
                    raise TimeoutError(f"{self._sampling} turns are still being sampled after {timeout:g} s")
                self._changed.wait(left)

    def open(self) -> None:
        """Opens the gate; does nothing if it is open."""
        with self._changed:
            self._open()

    def _open(self) -> None:
        self._closed = False
        held, self._held = self._held, []
        for loop, opened in held:
            # The loop is gone if the server was stopped while turns waited.
            if not loop.is_closed():
                loop.call_soon_threadsafe(opened.set)

    def _enter(self) -> bool:
        with self._changed:
            if self._closed:
                return False
            self._loop = asyncio.get_running_loop()
            self._sampling += 1
            return True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
