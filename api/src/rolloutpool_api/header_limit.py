"""Request heads are bounded: uvicorn reads one of any length, before anybody has been asked for a key.

A connection whose head (request line and headers) grows beyond `MAX_HEAD_BYTES` gets a 431 and is closed.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["MAX_HEAD_BYTES", "BoundedHead"]

MAX_HEAD_BYTES = 64 * 1024

_BODY = b'{"error":{"message":"the request line and headers are larger than %d bytes"}}' % MAX_HEAD_BYTES
_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class BoundedHead(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with an end to its patience."""

    _in_head = False
    _parsed = 0
    _unfinished = 0

    def data_received(self, data: bytes) -> None:
        """As uvicorn's."""
        # One header that never ends is never reported to `on_header`.
        self._unfinished += len(data) if self._in_head else 0
        if self._unfinished > MAX_HEAD_BYTES:
            self.send_400_response("")
            return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """As uvicorn's."""
        self._in_head, self._parsed, self._unfinished = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """As uvicorn's."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """As uvicorn's."""
        self._in_head, self._unfinished = False, 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn's, or 431."""
        if max(self._parsed, self._unfinished) <= MAX_HEAD_BYTES:
            super().send_400_response(msg)
            return
        self.transport.write(_ANSWER)
        self.transport.close()

    def _count(self, size: int) -> None:
        self._parsed += size
        if self._parsed > MAX_HEAD_BYTES:
            # The parser turns it into the error that uvicorn answers with `send_400_response`.
            raise ValueError("the head is too large")
