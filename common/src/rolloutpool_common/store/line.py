"""A line: one connection to Redis, and the calls on it that have no answer yet.

1. `send` writes commands in one piece; their calls stand in a row, because Redis answers in the order of the commands.
2. What comes is fed to hiredis. Each complete answer belongs to the first call of the row, and becomes the result, or
   the exception, of its future. A caller that gave up has cancelled its future; its answer is dropped.
3. An answer that nobody has asked for, or what is no answer at all, ends the line: all that followed would be taken for
   the answer to something else. So does an answer that says that the server serves nobody now (LOADING).
4. When the line has ended, whoever owns it is told, with the calls that have no answer.

    send([a, b])        row a, b
    b":1\r\n$5\r\nhe"   a is 1; row b
    b"llo\r\n"          b is b"hello"; the line rests
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError

from rolloutpool_common.process.metrics import STORE_SECONDS
from rolloutpool_common.store.redis_compat import NOT_COMPLETE, PushNotification, answer_reader
from rolloutpool_common.store.store_call import StoreCall
from rolloutpool_common.store.write_waits import THREAD, IdleTime, wanted_seconds

_SPECIAL = (Exception, PushNotification)
BUSY_SECONDS = 0.001
"""After so long without an answer it is worth a system call to learn how busy this thread was meanwhile."""


class Line(asyncio.Protocol):
    """One connection. Its owner is told of its rest and its end."""

    def __init__(
        self,
        on_rest: Callable[[], None],
        on_unknown: Callable[[StoreCall], None],
        on_end: "Callable[[Line, Exception], None]",
        idle: IdleTime,
    ) -> None:
        """Is not connected yet; adds to `idle` how long Redis alone was waited for."""
        self.calls: deque[StoreCall] = deque()
        """Without an answer, in the order in which they were sent."""
        self.sent = self.heard = time.perf_counter()
        """When it last wrote, and when an answer last came."""
        self.kept: object = None
        """What has to live as long as the connection."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = idle
        self._thread, self._stat, self._since = THREAD.stat, b"", self.sent
        """What Linux says of this thread, as it was said at that time; until then `idle` has it."""
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._reader = answer_reader()
        self._on_rest, self._on_unknown, self._on_end = on_rest, on_unknown, on_end

    @property
    def is_open(self) -> bool:
        """Whether it is connected, as far as this process has heard."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, calls: Sequence[StoreCall]) -> None:
        """Writes commands; the line must be open."""
        assert self._transport is not None
        self.sent = self.heard = self._since = time.perf_counter()
        if self._thread is not None:
            self._stat = os.pread(self._thread.fd, 64, 0)
        self.calls.extend(calls)
        self._transport.write(b"".join([call.data for call in calls]) if len(calls) > 1 else calls[0].data)

    def end(self, error: Exception) -> None:
        """Ends it, for this reason; `on_end` is called a moment later."""
        if self._error is None:
            self._error = error
            if self._transport is not None:
                # Not `close`, which waits for what the other side may never read.
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        # uvloop's is no `asyncio.Transport`, but does the same.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Steps 2 and 3."""
        if self._error is not None:
            return
        reader, calls, now = self._reader, self.calls, time.perf_counter()
        if calls:
            waited, self._since = now - self._since, now
            if waited > BUSY_SECONDS and self._thread is not None:
                before, self._stat = self._stat, os.pread(self._thread.fd, 64, 0)
                waited = max(waited - wanted_seconds(before, self._stat), 0.0)
            self._idle.seconds += waited
        try:
            reader.feed(data)
            while calls:
                if (answer := reader.gets()) is NOT_COMPLETE:
                    return
                special = isinstance(answer, _SPECIAL)
                if special and isinstance(answer, PushNotification):
                    continue
                if special and isinstance(answer, RedisConnectionError):
                    raise answer
                self.heard = now
                call = calls.popleft()
                if special and isinstance(answer, NoScriptError) and call.script is not None and not call.has_text:
                    self._on_unknown(call)
                    continue
                STORE_SECONDS.observe(now - call.begun, call.name)
                if special:
                    call.refuse(answer)
                elif not call.done():
                    call.set_result(answer)
            # Asked before the reader is: it takes the head of an array in, and would put the next answer into it.
            while reader.has_data():
                if not isinstance(reader.gets(), PushNotification):
                    raise InvalidResponse("something that nobody has asked for")
        except (RedisConnectionError, InvalidResponse) as error:
            return self.end(error)
        self._on_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Step 4."""
        self._on_end(self, self._error or exc or RedisConnectionError("Connection closed by server."))
        self.ended.set_result(None)
