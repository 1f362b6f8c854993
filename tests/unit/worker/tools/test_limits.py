"""Limits of tool calls: results are cut at a character, faults quote little, and arguments are counted to the limit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_worker.tools.limits import LONGEST_FAULT, cut_result, shorten_fault, size_of


@given(st.text(st.characters()), st.integers(min_value=1, max_value=50))
def test_a_cut_shows_whole_characters_of_the_beginning(text: str, limit: int) -> None:
    cut, was_cut = cut_result(text, limit)
    sendable = text.encode("utf-8", "backslashreplace").decode()
    if len(sendable.encode()) <= limit:
        assert (cut, was_cut) == (sendable, False)
        return
    shown, mark, rest = cut.rpartition("… [cut: ")
    assert mark
    assert was_cut
    assert sendable.startswith(shown)
    assert len(shown.encode()) <= limit < len(shown.encode()) + 4
    assert rest.endswith(f" of {len(text)} characters shown]")


def test_a_fault_quotes_little() -> None:
    assert shorten_fault("x" * LONGEST_FAULT) == "x" * LONGEST_FAULT
    assert shorten_fault("x" * 10_000_000) == "x" * LONGEST_FAULT + "… [cut: 1000 of 10000000 characters shown]"


@pytest.mark.parametrize(
    "arguments", ["x" * 101, {"a": "x" * 101}, {"x" * 101: 1}, {"a": [0] * 101}, {"a": [[["x" * 50], {"b": "x" * 50}]]}]
)
def test_what_is_larger_is_noticed(arguments: Any) -> None:
    assert size_of(arguments, at_most=100) > 100
    assert size_of({"a": 1, "b": "2"}, at_most=100) < 10


def test_nesting_has_no_limit_of_its_own() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert size_of(deep, at_most=10**9) == 200_000
