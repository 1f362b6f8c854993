"""What the rollouts of a batch need is written once for all of them, and apart for those that differ."""

from typing import Any

import pytest
from tests.support.batches import new_batch

from rolloutpool_common.protocol.offers import spell
from rolloutpool_common.store.needs import SHOWN, BatchNeeds, read_needs

MAZE = {"environment": {"name": "maze"}}


def fields_of(needs: BatchNeeds) -> dict[str, bytes]:
    given = [part.encode() if isinstance(part, str) else part for part in needs.fields()]
    return {name.decode(): value for name, value in zip(given[::2], given[1::2], strict=True)}


@pytest.mark.parametrize("plain", [{}, {"tools": ["add"]}, {"messages": [{"role": "user", "content": '"tools"'}]}])
def test_a_plain_batch_has_none_and_writes_nothing(plain: dict[str, Any]) -> None:
    needs = BatchNeeds.of(new_batch([plain] * 3))
    assert (needs.common, needs.own, needs.fields()) == ("", {}, [])


@pytest.mark.parametrize("where", ["shared", "own"])
def test_rollouts_that_are_alike_have_no_entries_of_their_own(where: str) -> None:
    batch = new_batch(3, shared=MAZE) if where == "shared" else new_batch([MAZE] * 3)
    needs = BatchNeeds.of(batch)
    assert (needs.common, needs.own) == (spell(["environment:maze"]), {})
    assert read_needs(fields_of(needs)) == [["environment:maze"]]


def test_those_that_differ_have_theirs_also_where_most_need_nothing() -> None:
    needs = BatchNeeds.of(new_batch([{}, {}, MAZE, {"grader": {"name": "g"}, **MAZE}]))
    assert needs.common == spell([])
    assert needs.own == {2: spell(["environment:maze"]), 3: spell(["environment:maze", "grader:g"])}
    assert sorted(read_needs(fields_of(needs))) == [[], ["environment:maze"], ["environment:maze", "grader:g"]]


def test_a_rollouts_own_fields_replace_the_batchs_and_metadata_is_merged() -> None:
    shared = {**MAZE, "metadata": {"termination_strategy": "early"}}
    own: list[dict[str, Any]] = [{}, {"environment": None}, {"metadata": {"termination_strategy": None}}, {}, {}]
    needs = BatchNeeds.of(new_batch(own, shared=shared))
    assert needs.common == spell(["environment:maze", "strategy:early"])
    assert needs.own == {1: spell(["strategy:early"]), 2: spell(["environment:maze"])}


def test_a_batch_of_many_different_needs_shows_some_of_them() -> None:
    needs = BatchNeeds.of(new_batch([{"tools": [f"t{n}"]} for n in range(100)]))
    assert len(needs.own) == 99
    assert len(read_needs(fields_of(needs))) == SHOWN + 1
