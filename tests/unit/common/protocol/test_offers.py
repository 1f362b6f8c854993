"""Offers and needs are names with their kind in front, without what every build has."""

from typing import Any

import pytest

from rolloutpool_common.protocol.environments import TOOL_SERVER
from rolloutpool_common.protocol.offers import (
    digest_of,
    missing,
    needs_of,
    spell,
)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, []),
        ({"agent": "tool_calls", "tools": ["add", "divide"], "environment": None, "grader": None}, []),
        ({"metadata": {"termination_strategy": "task_completion"}}, []),
        ({"tools": None, "metadata": None}, []),
        ({"tools": ["search", "add", "search"]}, ["tool:search"]),
        ({"agent": "planner"}, ["agent:planner"]),
        ({"metadata": {"termination_strategy": "early"}}, ["strategy:early"]),
        ({"environment": {"name": "maze", "task": 1}, "grader": {"name": "g"}}, ["environment:maze", "grader:g"]),
        ({"v1": True, "environment": {"name": TOOL_SERVER}, "metadata": {"termination_strategy": "x"}}, []),
        ({"environment": {"name": TOOL_SERVER}}, [f"environment:{TOOL_SERVER}"]),
    ],
)
def test_needs_are_what_a_rollout_names_beyond_what_every_build_has(fields: dict[str, Any], needs: list[str]) -> None:
    assert needs_of(fields) == needs


def test_the_same_names_are_spelled_the_same_and_others_are_not() -> None:
    assert spell(["b", "a"]) == spell(("a", "b"))
    assert spell(["a", "b"]).endswith(' ["a","b"]')
    digests = {digest_of(spell(names)) for names in ([], ["a"], ["a", "b"], ["a,b"], ['a","b'])}
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {32}


def test_what_is_missing_is_what_nobody_has_or_else_what_nobody_has_together() -> None:
    assert missing(["a", "b"], [["a"], ["c"]]) == ["b"]
    assert missing(["a", "b"], [["a"], ["b"]]) == ["a", "b"]
    assert missing(["a", "b"], [["a"], ["b", "a"]]) == []
    assert missing(["a"], []) == ["a"]
