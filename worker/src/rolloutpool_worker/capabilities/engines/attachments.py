"""Reads what an engine says of ids besides log-probabilities, and checks that it is of these very ids.

A reply is not refused for what is wrong here, because the ids and log-probabilities beside it are good: the piece says
what it lacks. What must fit:

- **Routed experts of vLLM** are a `.npy` file, which names its shape. They have a row for each id from the asked start
  on, without the last one; an engine that does not know the start sends all rows, and the first are cut off.
- **Those of SGLang** are bare bytes (int32). How long a row is, is only known where the number of rows is, so the first
  call asks for all positions. From then on the length of a row tells how many came.
- **Sampling masks** are a list of ids for each sampled id, which must be among them. So a list that is shifted by one
  is noticed.

    sampled    5 6 9      mask   [[5, 7], [6], [9, 2, 4]]      lengths 2 1 3      ids 5 7 6 9 2 4
"""

import ast
import binascii
import math
import re
from array import array
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rolloutpool_common.capabilities.engines.attachments import AttachmentLack
from rolloutpool_common.capabilities.engines.kept import PackedArray
from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.tokens.arrays import float_bytes, id_bytes

_NPY = b"\x93NUMPY"
_LONGEST_HEAD = 4096
_DTYPE = re.compile(r"[|<][iu][1248]")
_INT32 = "<i4"


@dataclass(frozen=True)
class CallAttachment:
    """Holds what one call has said, of one kind."""

    kind: AttachmentKind
    start: int
    """Offset in the context of the first row."""
    rows: int = 0
    arrays: Mapping[str, PackedArray] = field(default_factory=dict)
    lacks: AttachmentLack | None = None


@dataclass(frozen=True)
class RoutedRows:
    """Rows as they came."""

    dtype: str
    shape: tuple[int, ...]
    """Of one row."""
    row_bytes: int
    data: bytes = field(repr=False)


def unpacked(value: Any) -> bytes | None:
    """Returns what a text in base64 stands for; None where it is none."""
    try:
        return b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


def npy_rows(data: bytes) -> RoutedRows | None:
    """Reads a `.npy` file with rows of integers."""
    size = {1: 2, 2: 4, 3: 4}.get(data[6] if data.startswith(_NPY) and len(data) > 12 else 0)
    if size is None:
        return None
    begin = 8 + size
    end = begin + int.from_bytes(data[8:begin], "little")
    if not begin < end <= min(len(data), _LONGEST_HEAD):
        return None
    try:
        head = ast.literal_eval(data[begin:end].decode("latin-1").strip())
        dtype, shape, order = head["descr"], head["shape"], head["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return None
    counts = isinstance(shape, tuple) and len(shape) > 1 and all(type(n) is int and n > 0 for n in shape)
    if not counts or order is not False or not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        return None
    row_bytes = math.prod(shape[1:]) * int(dtype[2])
    if len(data) - end != shape[0] * row_bytes:
        return None
    return RoutedRows(dtype, shape[1:], row_bytes, data[end:])


def routed_attachment(value: Any, rows: RoutedRows | None, *, start: int, sent_from: int, end: int) -> CallAttachment:
    """Takes the rows of the positions from `start` to `end` out of what came."""
    kind = AttachmentKind.ROUTED_EXPERTS
    if value is None:
        return CallAttachment(kind, start, lacks=AttachmentLack.NOT_SENT)
    came = 0 if rows is None else len(rows.data) // rows.row_bytes
    # One that does not know the start sends the rows of the whole context.
    cut = next((start - begin for begin in (sent_from, 0) if begin <= start and came == end - begin), None)
    if rows is None or cut is None:
        return CallAttachment(kind, start, lacks=AttachmentLack.UNUSABLE)
    data = rows.data[cut * rows.row_bytes :] if cut else rows.data
    experts = PackedArray.of(rows.dtype, (end - start, *rows.shape), data)
    return CallAttachment(kind, start, end - start, {"experts": experts})


def raw_rows(data: bytes | None, row_bytes: int | None, n: int) -> RoutedRows | None:
    """Reads rows that come without a head."""
    length = row_bytes or (len(data) // n if data and n > 0 else 0)
    if not data or not length or length % 4 or len(data) % length:
        return None
    # How many layers there are, and how many experts of each, is not said.
    return RoutedRows(_INT32, (length // 4,), length, data)


def mask_attachment(masks: Any, ids: Sequence[int], *, first: int, logprobs: Any = None) -> CallAttachment:
    """Reads of which ids each sampled one was chosen."""
    kind = AttachmentKind.SAMPLING_MASK
    if masks is None:
        return CallAttachment(kind, first, lacks=AttachmentLack.NOT_SENT)
    try:
        arrays = _mask_arrays(masks, ids, logprobs)
    except (TypeError, ValueError, OverflowError):
        return CallAttachment(kind, first, lacks=AttachmentLack.UNUSABLE)
    return CallAttachment(kind, first, len(ids), arrays)


def _mask_arrays(masks: Any, ids: Sequence[int], logprobs: Any) -> dict[str, PackedArray]:
    """Raises ValueError, TypeError or OverflowError where they are not of these ids."""
    if not isinstance(masks, list) or not all(isinstance(mask, list) for mask in masks) or len(masks) != len(ids):
        raise ValueError
    if not all(token in mask for token, mask in zip(ids, masks, strict=True)):
        raise ValueError
    lengths, allowed = array("I", map(len, masks)), array("I", chain.from_iterable(masks))
    arrays = {
        "lengths": PackedArray.of("<u4", (len(lengths),), id_bytes(lengths)),
        "ids": PackedArray.of("<u4", (len(allowed),), id_bytes(allowed)),
    }
    if logprobs is not None:
        values = array("d", logprobs)
        if len(values) != len(ids) or not all(map(math.isfinite, values)):
            raise ValueError
        arrays["logprobs"] = PackedArray.of("<f8", (len(values),), float_bytes(values))
    return arrays
