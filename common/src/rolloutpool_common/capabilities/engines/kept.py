"""The attachments of rollouts (`attachments`): written with the end of a conversation, read on demand.

1. A worker compresses each array when an engine has sent it, and keeps the pieces until the conversation has ended.
2. `write_pieces` makes one record of them. The script that stores the result, or keeps it for a grader, stores the
   record in the same step, under the same fence. So a record is always of the attempt whose ids are in the result.
3. How much a rollout may attach is decided at admission, and reserved (`store/usage.py`): the batch's hash has it, and
   each claim tells it to the worker.
4. The record is deleted with its batch, or where a rollout that was kept for its grader is cancelled.

A record is a line of JSON, which describes the pieces, and then the bytes of their arrays, one after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import zstandard

from rolloutpool_common.capabilities.engines.attachments import AttachedArray, AttachedPiece, AttachmentLack
from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.errors import store_errors

PIECE_BYTES = 200
"""About what a piece takes besides its arrays."""


@dataclass(frozen=True)
class PackedArray:
    """An array, compressed."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)
    """zstd."""

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...], data: bytes) -> "PackedArray":
        """Compresses the bytes of an array; takes a millisecond for each MB or two."""
        return cls(dtype, shape, zstandard.compress(data, 1))


@dataclass(frozen=True, kw_only=True)
class PackedPiece:
    """An `AttachedPiece` with compressed arrays; the fields are the same."""

    kind: AttachmentKind
    turn: int
    first: int
    n: int
    digest: str
    start: int
    rows: int = 0
    lacks: AttachmentLack | None = None
    arrays: Mapping[str, PackedArray] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """About the bytes that it takes in a record."""
        return PIECE_BYTES + sum(len(one.data) for one in self.arrays.values())


def write_pieces(pieces: Sequence[PackedPiece]) -> bytes:
    """Makes a record."""
    head = [
        {
            **{name: value for name, value in vars(piece).items() if name != "arrays"},
            "arrays": {name: (one.dtype, one.shape, len(one.data)) for name, one in piece.arrays.items()},
        }
        for piece in pieces
    ]
    blobs = [one.data for piece in pieces for one in piece.arrays.values()]
    return b"".join((orjson.dumps(head), b"\n", *blobs))


def read_pieces(record: bytes) -> list[AttachedPiece]:
    """Reads a record. It may be megabytes, so not on an event loop."""
    end = record.index(b"\n")
    at, pieces = end + 1, []
    for known in orjson.loads(record[:end]):
        arrays: dict[str, Any] = {}
        for name, (dtype, shape, size) in known["arrays"].items():
            data = zstandard.decompress(record[at : at + size])
            arrays[name] = AttachedArray(dtype=dtype, shape=shape, data=data)
            at += size
        pieces.append(AttachedPiece(**{**known, "arrays": arrays}))
    return pieces


async def read_record(store: Store, uid: str) -> bytes | None:
    """Returns the record of a rollout; None where it has none."""
    with store_errors():
        record: bytes | None = await store.connection.redis.get(keys.rollout(uid, "attachments"))
    return record
