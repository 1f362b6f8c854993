"""WaitingHeads: how long a connection may take to send the head of a request, and how many of a client may do so.

A caller without a key is refused as soon as its head is there. A head that is never completed would never be refused,
and each such connection costs an open file.

1. The wait begins when a connection is made, and with the first byte after an answer.
2. It ends when the head is complete: then the key decides, and the body has limits of its own (`body`).
3. After `CROWD_SECONDS` a connection is closed where more than `crowd` of its client (an address) wait. Each is an open
   file, and no client gets all of them. A thousand programs of one busy machine are honest, and may take longer.
4. After the time that the settings allow it is closed in any case.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable

CROWD = 2048
"""The largest `crowd`, however many files this process may open."""
CROWD_SECONDS = 1.0

_BODY = b'{"error":{"message":"the request line and headers did not come in time"}}'
RESPONSE_408 = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)
"""The whole response; no application runs for such a request."""


class WaitingHeads:
    """The connections of one server on which a head is awaited."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is the longest that a head may take."""
        self.seconds = seconds
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.crowd = CROWD if files == resource.RLIM_INFINITY else min(CROWD, files // 4)
        """How many connections of one client may wait for longer than `CROWD_SECONDS`."""
        self.waiting: Counter[str] = Counter()
        """How many there are, by client."""

    def begin(self, client: str, on_late: Callable[[], object]) -> "HeadWait":
        """Begins to wait, in the running event loop."""
        return HeadWait(self, client, on_late)


class HeadWait:
    """The wait for one head."""

    def __init__(self, heads: WaitingHeads, client: str, on_late: Callable[[], object]) -> None:
        self._heads, self._client, self._on_late = heads, client, on_late
        self._loop = asyncio.get_running_loop()
        heads.waiting[client] += 1
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            min(CROWD_SECONDS, heads.seconds), self._look_at_crowd
        )

    def end(self) -> None:
        """Ends the wait; further calls do nothing."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._heads.waiting[self._client] -= 1
        if not self._heads.waiting[self._client]:
            del self._heads.waiting[self._client]

    def _look_at_crowd(self) -> None:
        left = self._heads.seconds - CROWD_SECONDS
        if left > 0 and self._heads.waiting[self._client] <= self._heads.crowd:
            self._timer = self._loop.call_later(left, self._late)
        else:
            self._late()

    def _late(self) -> None:
        self.end()
        self._on_late()
