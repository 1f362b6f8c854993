"""Paths read like the document."""

import pytest

from rolloutpool_api.fault_list import FaultList, path


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (("rollouts", 3, "messages", 0, "role"), "rollouts[3].messages[0].role"),
        (("query", "limit"), "query.limit"),
        (("header", "idempotency-key"), "header.idempotency-key"),
        (("labels", "a.b"), 'labels["a.b"]'),
        (("a", 'x"\n'), 'a["x\\"\\n"]'),
        (("", 0), '[""][0]'),
        ((), ""),
    ],
)
def test_paths(steps: tuple[str | int, ...], text: str) -> None:
    assert path(*steps) == text


def test_lists_that_are_joined_count_all_and_list_a_thousand() -> None:
    first, second = FaultList(), FaultList()
    for faults, count in ((first, 990), (second, 1200)):
        for index in range(count):
            faults.add(path("rollouts", index), "bad")
    first.extend(second)
    assert (len(first.listed), first.total) == (1000, 2190)
    assert first.listed[990].path == "rollouts[0]"
