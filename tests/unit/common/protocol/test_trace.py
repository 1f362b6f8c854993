"""Ids of traces: equal in every process, different for different things, and as W3C writes them."""

import re

from rolloutpool_common.protocol.trace import span_id_of, trace_id_of, traceparent


def test_ids_follow_from_what_they_name() -> None:
    # Written down: another release must go on with the traces of this one.
    assert trace_id_of("b1-0") == trace_id_of("b1-0") == "39bfb4dd4b2a1df81fafcedafc464290"
    assert span_id_of("b1-0", "turn", 2, 3) == "254af1dfef6e2686"


def test_ids_differ_where_what_they_name_differs() -> None:
    things: list[tuple[str, tuple[str | int, ...]]] = [
        ("b1-0", ()),
        ("b1-0", ("attempt", 1)),
        ("b1-0", ("turn", 1, 1)),
        ("b1-0", ("turn", 1, 11)),
        ("b1-0", ("turn", 11, 1)),
        ("b1-01", ("turn", 1, 1)),
        ("b1-1", ()),
    ]
    assert len({span_id_of(uid, *about) for uid, about in things}) == len(things)
    assert len({trace_id_of(uid) for uid, _ in things}) == 3


def test_the_header_is_that_of_w3c() -> None:
    header = traceparent("b1-0", span_id_of("b1-0"))
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", header)
    assert trace_id_of("b1-0") in header
