"""Ids and log-probabilities come back from the journal as the very numbers that went in."""

import math
from array import array
from base64 import b64encode

import pytest

from rolloutpool_common.tokens.arrays import (
    AT_ONCE,
    float_array,
    float_bytes,
    id_array,
    id_bytes,
    id_digest,
    pack_bytes,
    sliced,
    unpack,
)
from rolloutpool_common.tokens.errors import BadLogprob, BadTokenId, LedgerCorrupt

IDS = [0, 1, 128_000, 2**32 - 1]
LOGPROBS = [-0.1, -1e-300, 0.0, math.nextafter(-0.5, 0)]


def test_packed_numbers_come_back_bit_by_bit() -> None:
    assert list(unpack(pack_bytes(id_bytes(id_array(IDS))), array("I"))) == IDS
    assert list(unpack(pack_bytes(float_bytes(float_array(LOGPROBS))), array("d"))) == LOGPROBS


def test_the_bytes_are_little_endian_on_every_machine() -> None:
    assert id_bytes(id_array([1, 258])) == b"\x01\0\0\0\x02\x01\0\0"
    assert pack_bytes(id_bytes(id_array([1]))) == b64encode(b"\x01\0\0\0").decode()


def test_equal_ids_have_equal_digests_whatever_holds_them() -> None:
    assert id_digest(IDS) == id_digest(id_array(IDS)) == id_digest(iter(IDS))
    assert id_digest(IDS) != id_digest(IDS[:-1])


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["1"]])
def test_what_is_no_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(BadTokenId):
        id_array(ids)


def test_what_is_no_number_is_no_log_probability() -> None:
    with pytest.raises(BadLogprob):
        float_array([None])  # type: ignore[list-item]


@pytest.mark.parametrize("text", ["not base64", "AAA=", "A"])
def test_a_damaged_entry_is_refused(text: str) -> None:
    with pytest.raises(LedgerCorrupt):
        unpack(text, array("I"))


@pytest.mark.parametrize("n", [0, 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 5])
def test_slices_are_the_whole_in_its_order(n: int) -> None:
    values = list(range(n))
    parts = list(sliced(values))
    assert [value for part in parts for value in part] == values
    assert max(map(len, parts)) <= AT_ONCE
    assert [value for part in sliced(array("I", values)) for value in part] == values
