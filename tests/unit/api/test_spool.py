"""A body in memory that two processes can read."""

import os

from rolloutpool_api.spool import PIECE_BYTES, Spool

BODY = bytes(range(256)) * (PIECE_BYTES // 100)


def test_what_was_written_is_read_whole_and_in_pieces() -> None:
    with Spool.make() as spool:
        spool.write(BODY[:1000])
        spool.write(BODY[1000:])
        assert spool.read() == BODY
        pieces = list(spool.pieces())
    assert b"".join(pieces) == BODY
    assert max(map(len, pieces)) <= PIECE_BYTES


def test_another_descriptor_reads_the_same_after_the_first_was_closed() -> None:
    with Spool.make() as spool:
        spool.write(BODY)
        other = Spool(os.dup(spool.fd))
    with other:
        assert other.read() == BODY


def test_an_empty_one_has_no_pieces() -> None:
    with Spool.make() as spool:
        assert spool.read() == b""
        assert list(spool.pieces()) == []
