"""A head is bounded both by what was parsed of it and by what has arrived."""

from rolloutpool_api.header_limit import MAX_HEAD_BYTES, HeadSize


def test_many_headers_are_too_large_together() -> None:
    size = HeadSize()
    size.begin()
    size.parse(MAX_HEAD_BYTES)
    assert not size.is_exceeded
    size.parse(1)
    assert size.is_exceeded


def test_one_header_without_end_is_too_large() -> None:
    size = HeadSize()
    size.begin()
    size.receive(MAX_HEAD_BYTES + 1)
    assert size.is_exceeded


def test_a_body_counts_for_nothing_and_each_head_for_itself() -> None:
    size = HeadSize()
    for _ in range(3):
        size.begin()
        size.parse(MAX_HEAD_BYTES // 2)
        size.receive(MAX_HEAD_BYTES // 2)
        size.end()
        size.receive(10 * MAX_HEAD_BYTES)
        assert not size.is_exceeded
