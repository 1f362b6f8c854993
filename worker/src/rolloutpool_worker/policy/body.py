"""MessageBytes: the messages of a rollout as JSON, and TurnBody: the request body of one turn.

The whole history travels in each turn's request. Each message is encoded and hashed only once, when it is appended: the
digest of a body is the running digest of its messages, continued over the body's tail. Hashing the whole body each turn
took 3 % of a worker's loop at 64 turns with tool results of 2,000 characters.

Example: turn 2 sends `{"model":"default","messages":[m1,m2,m3` + `],"response_mask":[0,0]}`. Of these bytes, only m3
and the tail are new to the digest.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from rolloutpool_common.protocol.completions import CompletionsRequest

_HEAD = b'{"model":%b,"messages":[' % orjson.dumps(CompletionsRequest.model_fields["model"].default)


class TurnBody(NamedTuple):
    """The body of one request to the trainer, and its digest."""

    data: bytes
    digest: str
    """blake2b-128 of `data`, in hex. A trainer refuses the same turn with another digest."""

    def with_key(self, key: str, value: Any) -> "TurnBody":
        """Returns the same turn with one more key, and with the digest of this body: it is no other turn.

        A trainer that answered only the longer request answers the plain one as well, if a later attempt asks that.
        """
        return TurnBody(b'%b,"%b":%b}' % (self.data[:-1], key.encode(), orjson.dumps(value)), self.digest)


class MessageBytes:
    """Messages in normal form, encoded as JSON, with the running digest of a body that begins with them."""

    def __init__(self, messages: Iterable[Mapping[str, Any]] = ()) -> None:
        self.parts: list[bytes] = []
        """Each message as JSON, in normal form."""
        self._digest = hashlib.blake2b(_HEAD, digest_size=16)
        self.append(messages)

    def append(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Encodes and hashes further messages; takes time for these alone, however long the history is."""
        for message in messages:
            if self.parts:
                self._digest.update(b",")
            # Copied, because orjson 3.13 allocates 4 kB for each text, however short; a conversation keeps hundreds.
            self.parts.append(bytes(memoryview(orjson.dumps(message))))
            self._digest.update(self.parts[-1])

    def body(self, tail: bytes) -> TurnBody:
        """Makes the body that consists of all messages, followed by `tail`."""
        digest = self._digest.copy()
        digest.update(tail)
        return TurnBody(b"".join((_HEAD, b",".join(self.parts), tail)), digest.hexdigest())
