"""A sender: brings calls to Redis by one line at a time, and repeats those whose line broke.

A hundred rollouts in flight make their calls at the same moments. One write for all calls that wait costs a third of
one write each, in this process and in Redis, which also writes to disk once for all of them.

1. Calls of one tick of the event loop leave in one write, at most `WRITE_BYTES`; those that may be joined are
   (`store_call.py`). What is called while a write has no answers waits for them, and leaves in the next one.
2. The line is opened when a call needs it, and kept. One that was silent for `SILENT_SECONDS` may be cut without a
   word; another one takes its place before the next write.
3. A line that hangs holds up nobody: if its answers take longer than `OVERTAKE_SECONDS` and others wait, it is left
   with what it carries, and another one is opened. So is one that takes so long to be opened.
4. If a line breaks, its calls wait for the next one. A call is sent `1 + RETRIES` times within half a second, then it
   has the error. A command may therefore reach Redis twice when its answer is lost, and every script is written so that
   the second arrival changes nothing.
5. One timer looks after all this while anything is under way. A line without an answer for `ANSWER_SECONDS` is broken.

Example: 100 rollouts claim at once. The first tick's write carries all of them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rolloutpool_common.store.line import Line
from rolloutpool_common.store.store_call import StoreCall, StoreScript, join
from rolloutpool_common.store.write_waits import IdleTime

Dial = Callable[[Line], Awaitable[object]]
"""Connects a line and greets the server; returns what has to live as long as the connection."""

AT_ONCE = 128
"""Calls of one write: the answers of so many reads of results are some megabytes."""
WRITE_BYTES = 256 * 1024
"""Of one write; a larger call goes alone."""
LARGE = 64 * 1024
"""Bytes of one call, joint or not. Redis does nothing else meanwhile, so a larger one goes another way (`Scripts`)."""
RETRIES = 3
"""All within half a second: enough for a connection that was cut. Of an outage the callers have to know."""
OVERTAKE_SECONDS = 0.25
"""A round trip takes milliseconds; after this time a connection counts as hanging."""
ANSWER_SECONDS = 30.0
SILENT_SECONDS = 25.0
UNUSED_SECONDS = 5.0
"""After this time a line that is not kept is closed."""
MOST_DIALS, MOST_OVERTAKEN = 4, 32
"""Attempts to connect at the same time, and lines that hang."""
_PASSING = (RedisConnectionError, RedisTimeoutError, OSError)


class Sender:
    """Calls on their way to one Redis; for one event loop."""

    def __init__(self, dial: Dial, idle: IdleTime, *, keeps: bool = True) -> None:
        """Prepares without connecting; `keeps` is whether a line stays open when nothing was sent for a while."""
        self._dial, self._idle, self._keeps = dial, idle, keeps
        self._backoff = EqualJitterBackoff(cap=0.5, base=0.05)
        self._waiting: deque[StoreCall] = deque()
        self._line: Line | None = None
        self._overtaken: set[Line] = set()
        self._dials: set[asyncio.Task[Line]] = set()
        self._dialled = 0.0
        """When the latest attempt to connect began."""
        self._due = False
        """Whether `_write` is called at the end of this tick."""
        self._pause: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def send(self, call: StoreCall) -> None:
        """Sends a call with those of this tick."""
        self._waiting.append(call)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._write)

    async def close(self) -> None:
        """Ends all lines; calls without an answer fail. A later call opens a line again."""
        for handle in (self._pause, self._timer):
            if handle is not None:
                handle.cancel()
        self._pause = self._timer = None
        dials, lines = list(self._dials), [*self._overtaken, *([self._line] if self._line else [])]
        for dial in dials:
            dial.cancel()
        closed = RedisConnectionError("closed by this process")
        sent = [part for line in lines for call in line.calls for part in call.parts]
        for call in [*self._waiting, *sent]:
            call.refuse(closed)
        self._waiting.clear()
        for line in lines:
            line.end(closed)
        await asyncio.gather(*dials, *(line.ended for line in lines), return_exceptions=True)

    def _arm(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._write)

    def _rest(self) -> None:
        # The callers that have their answers now make their next calls before the next write.
        if self._waiting:
            self._arm()

    def _bring_source(self, call: StoreCall) -> None:
        """Redis forgets scripts when it is started again. The call goes once more, with the script's text."""
        call.bring_text()
        self.send(call)

    def _write(self) -> None:
        """Steps 1 to 3."""
        self._due = False
        if (line := self._line) is None:
            return self._connect()
        if line.calls:
            return self._overtake(line)
        now = time.perf_counter()
        if now - line.heard > SILENT_SECONDS:
            self._line = None
            line.end(RedisConnectionError("silent for long"))
            return self._connect()
        if not line.is_open:
            # Its end is told in a moment.
            return
        if calls := self._taken():
            line.send(calls)
            self._look_later()

    def _taken(self) -> list[StoreCall]:
        """Takes what leaves in one write, parts joined."""
        waiting = self._waiting
        calls: list[StoreCall] = []
        parts: dict[StoreScript, list[StoreCall]] = {}
        size = 0
        while waiting and len(calls) < AT_ONCE:
            call = waiting[0]
            size += call.size
            if size > WRITE_BYTES and size > call.size:
                break
            waiting.popleft()
            # A caller that gave up has cancelled its future; its call is not sent.
            if call.done():
                size -= call.size
            elif call.data:
                calls.append(call)
            else:
                assert call.script is not None
                parts.setdefault(call.script, []).append(call)
        for some in parts.values():
            calls += map(join, _pieces(some))
        return calls

    def _connect(self) -> None:
        if self._waiting and self._pause is None and not self._dials:
            self._open()

    def _open(self) -> None:
        self._dialled = time.perf_counter()
        dial = asyncio.get_running_loop().create_task(self._dialled_line())
        self._dials.add(dial)
        dial.add_done_callback(self._opened)
        self._look_later()

    async def _dialled_line(self) -> Line:
        line = Line(self._rest, self._bring_source, self._end, self._idle)
        line.kept = await self._dial(line)
        return line

    def _opened(self, dial: asyncio.Task[Line]) -> None:
        self._dials.discard(dial)
        if dial.cancelled():
            return
        if (error := dial.exception()) is not None:
            # Another attempt may be under way, or have succeeded.
            if not self._dials and self._line is None:
                waiting, self._waiting = self._waiting, deque()
                self._repeat(waiting, error)
        elif self._line is not None:
            dial.result().end(RedisConnectionError("another one was quicker"))
        else:
            self._line = dial.result()
            for other in self._dials:
                other.cancel()
            self._write()

    def _end(self, line: Line, error: Exception) -> None:
        """Step 4."""
        if line is self._line:
            self._line = None
        self._overtaken.discard(line)
        self._repeat(line.calls, error)
        line.calls.clear()

    def _repeat(self, calls: Iterable[StoreCall], error: BaseException) -> None:
        again: list[StoreCall] = []
        for call in [part for broken in calls for part in broken.parts]:
            call.tries += 1
            if call.done():
                continue
            if call.tries > RETRIES or not isinstance(error, _PASSING):
                call.refuse(error)
            else:
                again.append(call)
        self._waiting.extendleft(reversed(again))
        if not self._waiting:
            return
        if self._line is not None or not again:
            self._arm()
        elif self._pause is None:
            seconds = self._backoff.compute(max(call.tries for call in again))
            self._pause = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._write()

    def _overtake(self, line: Line) -> None:
        if time.perf_counter() - line.sent > OVERTAKE_SECONDS and len(self._overtaken) < MOST_OVERTAKEN:
            self._line = None
            self._overtaken.add(line)
            self._connect()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(OVERTAKE_SECONDS, self._look)

    def _look(self) -> None:
        """Step 5."""
        self._timer = None
        now = time.perf_counter()
        line = self._line
        for one in [*self._overtaken, *([line] if line else [])]:
            if one.calls:
                if now - one.heard > ANSWER_SECONDS:
                    one.end(RedisTimeoutError("Timeout reading from socket"))
            elif one is not line:
                # Overtaken, and its answers came after all.
                one.end(RedisConnectionError("overtaken"))
            elif not self._keeps and now - one.heard > UNUSED_SECONDS:
                one.end(RedisConnectionError("unused"))
        if self._waiting:
            if line is not None:
                self._write()
            elif self._dials and now - self._dialled > OVERTAKE_SECONDS and len(self._dials) < MOST_DIALS:
                self._open()
        if self._overtaken or self._dials or (line is not None and (line.calls or not self._keeps)):
            self._look_later()


def _pieces(parts: Sequence[StoreCall]) -> Iterator[Sequence[StoreCall]]:
    """Cuts parts into pieces of at most `LARGE` bytes; a larger part is a piece by itself."""
    begin = size = 0
    for end, part in enumerate(parts):
        if size and size + part.size > LARGE:
            yield parts[begin:end]
            begin, size = end, 0
        size += part.size
    yield parts[begin:]
