"""One connection to a fakeredis, as Redis sees it: commands come as bytes, and answers go as bytes."""

from collections.abc import Callable
from typing import Any

from fakeredis._helpers import SimpleError
from fakeredis.aioredis import AsyncFakeSocket


class _Refusal:
    """An error, as the client gets it."""

    def __init__(self, text: str) -> None:
        self.text = text


class FakeSession(AsyncFakeSocket):
    """Gives each answer to `answer`, written as RESP2."""

    answer: Callable[[bytes], None]

    def put_response(self, msg: Any) -> None:
        """Sends an answer."""
        self.answer(_encoded(msg))

    def _decode_error(self, error: SimpleError) -> Any:
        return _Refusal(error.value)


def _encoded(answer: Any) -> bytes:
    match answer:
        case None:
            return b"$-1\r\n"
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(answer), answer)
        case bool() | int():
            return b":%d\r\n" % answer
        case list() | tuple():
            return b"*%d\r\n%b" % (len(answer), b"".join(map(_encoded, answer)))
        case _Refusal():
            return f"-{answer.text}\r\n".encode()
        case dict():
            return _encoded([part for pair in answer.items() for part in pair])
    text = str(answer).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)
