"""Token ids and log-probabilities as arrays, and as text for the journal.

Ids are uint32 and log-probabilities float64, each as base64 of the little-endian bytes. A journal must give back the
very numbers that the trainer sent, and numbers in JSON survive only in codecs that promise it. Base64 is also a third
of the size, and about 20 times faster to read than a list of numbers.
"""

import hashlib
import sys
from array import array
from base64 import b64decode
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rolloutpool_common.tokens.errors import BadLogprob, BadTokenId, LedgerCorrupt

_IS_LITTLE = sys.byteorder == "little"
AT_ONCE = 32_768
"""Values per slice: at most a millisecond for any of what is done with them."""
Items = TypeVar("Items", list[int], list[float], "array[int]")
Numbers = TypeVar("Numbers", "array[int]", "array[float]")


def id_array(ids: Sequence[int]) -> "array[int]":
    """The ids as uint32. Raises BadTokenId."""
    try:
        return array("I", ids)
    except (OverflowError, TypeError) as error:
        raise BadTokenId(f"A token id is not an integer in 0 … 2**32 - 1: {error}.") from None


def id_hash(ids: Iterable[int] = ()) -> "hashlib.blake2b":
    """The running hash of token ids: blake2b-128 of them as little-endian uint32."""
    running = hashlib.blake2b(digest_size=16)
    running.update(id_bytes(ids if isinstance(ids, array) else array("I", ids)))
    return running


def id_digest(ids: Iterable[int]) -> str:
    """The digest (hex) by which the pool and a trainer tell that they hold the same ids."""
    return id_hash(ids).hexdigest()


def id_bytes(ids: "array[int]") -> bytes:
    """Little-endian uint32, on every machine."""
    return ids.tobytes() if _IS_LITTLE else _little(ids).tobytes()


def float_bytes(values: "array[float]") -> bytes:
    """Little-endian float64, on every machine."""
    return values.tobytes() if _IS_LITTLE else _little(values).tobytes()


def float_array(values: Sequence[float]) -> "array[float]":
    """The log-probabilities as float64. Raises BadLogprob."""
    try:
        return array("d", values)
    except TypeError as error:
        raise BadLogprob(f"A log-probability is not a number: {error}.") from None


def pack_bytes(data: bytes) -> str:
    """Base64 of values that `id_bytes` or `float_bytes` gave."""
    return b2a_base64(data, newline=False).decode("ascii")


def unpack(text: str, into: Numbers) -> Numbers:
    """Reads what `pack_bytes` wrote."""
    try:
        into.frombytes(b64decode(text, validate=True))
    except ValueError as error:
        raise LedgerCorrupt(f"The journal holds an entry whose numbers cannot be read: {error}.") from None
    return _little(into)


def unpack_all(texts: Iterable[str], into: Numbers) -> Numbers:
    """Reads what `pack_bytes` wrote several times, one after the other; as `unpack`."""
    try:
        into.frombytes(b"".join(map(a2b_base64, texts)))
    except ValueError as error:
        raise LedgerCorrupt(f"The journal holds an entry whose numbers cannot be read: {error}.") from None
    return _little(into)


def sliced(values: Items) -> Iterator[Items]:
    """Yields the values in slices. Between two of them another thread can run, such as that of an event loop."""
    if len(values) <= AT_ONCE:
        yield values
    else:
        for start in range(0, len(values), AT_ONCE):
            yield values[start : start + AT_ONCE]


def _little(values: Numbers) -> Numbers:
    if not _IS_LITTLE:
        values = values[:]
        values.byteswap()
    return values
