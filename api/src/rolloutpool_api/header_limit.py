"""HeadSize: bounds a request's head, which uvicorn reads at any length before a key is checked.

The head is the request line and the headers. A connection whose head grows beyond `MAX_HEAD_BYTES` gets a 431 and is
closed. `uvicorn_compat` feeds the counters, because only the protocol of a connection sees the head while it comes.
"""

MAX_HEAD_BYTES = 64 * 1024

_BODY = b'{"error":{"message":"the request line and headers are larger than %d bytes"}}' % MAX_HEAD_BYTES
RESPONSE_431 = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)
"""The whole response; no application runs for such a request."""


class HeadSize:
    """Counts the bytes of one head after the other, on one connection.

    Two counters are needed, because a parser reports a header only when it is complete: `parsed` counts what was
    reported, and `received` counts what arrived since the head began, so that one header without end is noticed too.
    """

    def __init__(self) -> None:
        """Starts outside a head."""
        self._in_head = False
        self._parsed = self._received = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether the current head is too large."""
        return max(self._parsed, self._received) > MAX_HEAD_BYTES

    def begin(self) -> None:
        """Notes the first byte of a head."""
        self._in_head, self._parsed, self._received = True, 0, 0

    def receive(self, size: int) -> None:
        """Counts bytes that arrived; those outside a head are ignored."""
        if self._in_head:
            self._received += size

    def parse(self, size: int) -> None:
        """Counts bytes of the URL or of a complete header."""
        self._parsed += size

    def end(self) -> None:
        """Notes that the head is complete. What was parsed still counts until the next head."""
        self._in_head, self._received = False, 0
