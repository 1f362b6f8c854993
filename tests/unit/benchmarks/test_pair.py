"""Sides of a pair take turns, and each ratio is of two runs that stood side by side."""

from pathlib import Path

from benchmarks.pair import compare, order
from benchmarks.pair_tree import Side

OLD, NEW = Side("old", Path("a")), Side("new", Path("b"))


def test_the_sides_take_turns_in_being_the_first() -> None:
    assert "".join(side.name[0] for side in order(3, OLD, NEW)) == "onnoon"


def test_a_ratio_is_the_new_figure_by_the_old_one_of_its_pair() -> None:
    old = [{"3": {"ms": 10.0, "trips": 4.0}}, {"3": {"ms": 20.0, "trips": 4.0}}, {"3": {"ms": 10.0, "trips": 4.0}}]
    new = [{"3": {"ms": 5.0, "trips": 4.0}}, {"3": {"ms": 30.0, "trips": 4.0}}, {"3": {"ms": 8.0, "trips": 4.0}}]
    time, trips = compare(old, new)
    assert (time["turns"], time["a rollout's"], time["commit"], time["working tree"]) == (3, "ms", 10.0, 8.0)
    ratios = ("ratio of medians", "pairs, smallest", "pairs, median", "pairs, largest")
    assert [time[column] for column in ratios] == [0.8, 0.5, 0.8, 1.5]
    assert [trips[column] for column in ratios] == [1, 1, 1, 1]
