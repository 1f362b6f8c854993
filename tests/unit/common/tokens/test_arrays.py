"""Numbers come back from text bit by bit, and ids are hashed as little-endian uint32."""

import hashlib
import math
import struct
from array import array

import pytest

from rolloutpool_common.tokens.arrays import float_array, id_array, id_bytes, id_digest, id_hash, pack, unpack
from rolloutpool_common.tokens.errors import BadLogprob, BadTokenId, LedgerCorrupt

IDS = [0, 1, 2**31, 2**32 - 1]
LOGPROBS = [-0.0, -1 / 3, -math.pi * 1e-300, 5e-324]


def test_ids_and_log_probabilities_come_back() -> None:
    assert unpack(pack(id_array(IDS)), array("I")).tolist() == IDS
    again = unpack(pack(float_array(LOGPROBS)), array("d"))
    assert struct.pack("<4d", *again) == struct.pack("<4d", *LOGPROBS)


@pytest.mark.parametrize("text", ["AAA", "A", "AAAA", "!", "AAAAAA==\n"])
def test_what_is_no_packed_number_is_refused(text: str) -> None:
    with pytest.raises(LedgerCorrupt):
        unpack(text, array("I"))


def test_the_digest_is_blake2b_of_little_endian_ids() -> None:
    expected = hashlib.blake2b(struct.pack("<4I", *IDS), digest_size=16)
    assert id_bytes(id_array(IDS)) == struct.pack("<4I", *IDS)
    assert id_digest(IDS) == id_digest(id_array(IDS)) == expected.hexdigest()
    running = id_hash(IDS[:1])
    running.update(id_bytes(id_array(IDS[1:])))
    assert running.digest() == expected.digest()


@pytest.mark.parametrize("bad", [-1, 2**32, 1.0, "1", None])
def test_an_id_is_a_whole_number_of_32_bits(bad: object) -> None:
    with pytest.raises(BadTokenId):
        id_array([1, bad])  # type: ignore[list-item]


def test_a_log_probability_is_a_number() -> None:
    with pytest.raises(BadLogprob):
        float_array([None])  # type: ignore[list-item]
