"""Rows are filtered and put in order; a cursor is a place in that order, whatever happens to the rows."""

import random
from typing import Any

import pytest

from rolloutpool_api.capabilities.tables.choice import Choice, Condition, choose, columns_of, first_index, index_cursor
from rolloutpool_api.errors import BadCursor
from rolloutpool_common.protocol.rows import ENDED_FIELDS
from rolloutpool_common.store.rows import StoredTable


def all_pages(columns: dict[str, list[Any]], sort: str, limit: int = 3) -> list[int]:
    found: list[int] = []
    choice = Choice([], 0, None)
    while not found or choice.next_cursor is not None:
        choice = choose(columns, [], sort, choice.next_cursor, limit)
        found += [columns["index"][place] for place in choice.places]
    return found


@pytest.mark.parametrize("sort", ["x", "-x", "index", "-index"])
@pytest.mark.parametrize("seed", range(5))
def test_pages_have_each_row_once_in_order(sort: str, seed: int) -> None:
    rng = random.Random(seed)
    n = 40
    choices: list[list[Any]] = [[None, 1, 2.5, -3], [None, "a", "b", ""], [[], ["a"], ["a", "b"], None], [None]]
    for values in choices:
        columns: dict[str, list[Any]] = {"index": list(range(n)), "x": [rng.choice(values) for _ in range(n)]}
        found = all_pages(columns, sort)
        assert sorted(found) == list(range(n))
        assert found == [columns["index"][p] for p in choose(columns, [], sort, None, n).places]
        if sort in ("x", "-x"):
            nulls = [index for index in found if columns["x"][index] is None]
            assert found[n - len(nulls) :] == sorted(nulls)


def test_a_row_that_moves_is_not_missed_by_others() -> None:
    columns = {"index": [0, 1, 2, 3], "x": [4, 3, 2, 1]}
    first = choose(columns, [], "-x", None, 2)
    assert first.places == [0, 1]
    # The row that the cursor names now has another value: the others keep their places.
    assert choose({**columns, "x": [4, None, 2, 1]}, [], "-x", first.next_cursor, 9).places == [2, 3, 1]


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("x=1", [1, 1.0, "1"]),
        ("x=", [None, ""]),
        ("x=a,b", ["a", "b"]),
        ("x!=a", ["b", None, 1]),
        ("x>1", [2, 1.5]),
        ("x<=1", [1, 0.5, -3]),
        ("x~ab", ["cabc", ["ab"]]),
        ("x=a+b", [["a", "b"]]),
        ("x.y=1", [1]),
    ],
)
def test_conditions(text: str, passing: list[Any]) -> None:
    condition = Condition.parse(text)
    assert [value for value in passing if not condition.passes(value)] == []


@pytest.mark.parametrize(
    ("text", "failing"),
    [("x=1", [None, 2]), ("x>1", [None, 1, "2", []]), ("x<1", [None]), ("x~a", [None, 1, ["ab"]]), ("x!=a", ["a"])],
)
def test_conditions_that_fail(text: str, failing: list[Any]) -> None:
    condition = Condition.parse(text)
    assert [value for value in failing if condition.passes(value)] == []


@pytest.mark.parametrize("text", ["", "x", "=1", "x>y", "x>", "X=1", "x y=1", "x>=1e"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match=r"compares numbers|must be"):
        Condition.parse(text)


def test_the_cursor_of_one_order_is_none_of_another() -> None:
    columns: dict[str, list[Any]] = {"index": [0, 1], "x": [1, 2], "y": ["a", "b"]}
    cursor = choose(columns, [], "x", None, 1).next_cursor
    with pytest.raises(BadCursor):
        choose(columns, [], "y", cursor, 1)
    with pytest.raises(BadCursor):
        choose({**columns, "x": ["a", "b"]}, [], "x", cursor, 1)
    assert first_index(index_cursor(7)) == 8
    assert first_index(None) == 0


def test_a_row_of_an_older_version_is_filled_with_null() -> None:
    table = StoredTable(total=1, created_ms=0, now_ms=0, indexes=[0], rows=[[1, 2]], groups=["g"])
    columns = columns_of(table, "b", {}, ["index", "uid", "group", *ENDED_FIELDS])
    assert {name: list(column) for name, column in columns.items() if column[0] is not None} == {
        "index": [0],
        "uid": ["b-0"],
        "group": ["g"],
        "ended_ms": [1],
        "claimed_ms": [2],
    }
