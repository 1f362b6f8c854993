"""Attachments: what an engine can say of ids besides log-probabilities. They are kept beside a result, not in it.

| kind | has for | arrays |
| --- | --- | --- |
| `routed_experts` | each position of a context but the last | `experts` [rows, layers, experts of a token] |
| `sampling_mask` | each sampled id | `lengths` [rows], `ids` [sum of lengths], `logprobs` [rows] where they are sent |

The pool does not look into them. It knows how many rows each has, and to which ids these belong:

1. A batch asks for them (`attach`). A call of the engine then gives one `AttachedPiece` of each kind, or a piece that
   says why it has none.
2. A piece belongs to the ids of one call: `n` ids from offset `first` of the context, which is a sample's prompt and
   response. Their digest is in the piece, so a reader notices a piece of other ids.
3. Rows of sampling masks begin at `first`. Rows of routed experts begin at `start`, where those of the call before
   end, and end before the last sampled id: an engine routes an id when it samples the next one.
4. Nothing of this is in the journal. If a worker ends, what it had is lost, and no piece has the turn.

    context   1 2 3   10 11   20 21   12 13          turn 1 samples 10 11, turn 2 samples 12 13
    experts   |---1---|--2------------|              turn 1: start 0, rows 4. turn 2: start 4, rows 4
    mask              |--1--|         |--2--|        turn 1: first 3, rows 2. turn 2: first 7, rows 2
"""

import hashlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.tokens.arrays import id_bytes

_DIGEST_BYTES = 8
"""Enough to notice other ids."""


def _decoded(value: Any) -> Any:
    return b64decode(value, validate=True) if isinstance(value, str) else value


def _encoded(value: bytes) -> str:
    return b64encode(value).decode("ascii")


# Not pydantic's own base64, which has another alphabet; readers that expect the usual one would skip its characters.
_Base64 = Annotated[bytes, BeforeValidator(_decoded), PlainSerializer(_encoded, when_used="json")]


class AttachmentLack(StrEnum):
    """Why a piece has no rows."""

    NOT_SENT = "not_sent"
    """The engine has sent none. It may have been started without the flag for it."""
    UNUSABLE = "unusable"
    """It has sent something else than its form, or for another number of ids."""
    TOO_LARGE = "too_large"
    """The rollout's attachments would take more than it may have."""


class AttachedArray(BaseModel):
    """Numbers, as an array library reads them: `numpy.frombuffer(data, dtype).reshape(shape)`."""

    model_config = ConfigDict(frozen=True)

    dtype: str
    """As numpy names it: `|u1`, `<u2`, `<i4`, `<f8` …"""
    shape: list[int]
    data: _Base64 = Field(repr=False)
    """In base64 on the wire, with `+` and `/`."""


class AttachedPiece(BaseModel):
    """Holds what one call of an engine has said of its ids, of one kind."""

    model_config = ConfigDict(frozen=True)

    kind: AttachmentKind
    turn: int
    """Of the ids that the call has sampled."""
    first: int
    """Offset of the first of them in the context."""
    n: int
    """How many they are."""
    digest: str
    """Of these ids, see `piece_digest`."""
    start: int
    """Offset in the context of the first row."""
    rows: int
    """0 where there are none."""
    lacks: AttachmentLack | None = None
    arrays: Mapping[str, AttachedArray] = Field(default_factory=dict)


class RolloutAttachments(Answer):
    """`GET /v1/rollouts/{uid}/attachments`."""

    uid: str
    pieces: list[AttachedPiece]
    """In the order of the calls. Turns that no piece has are lost, or are a fork's parent's."""


def piece_digest(ids: Sequence[int]) -> str:
    """Returns the digest by which the ids of a piece are known again: blake2b-64, hex."""
    return hashlib.blake2b(id_bytes(array("I", ids)), digest_size=_DIGEST_BYTES).hexdigest()
