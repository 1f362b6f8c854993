"""The prefix tree of a group, against a comparison of every sample with all earlier ones."""

from itertools import takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.finished_rollouts import rollout, sample

from rolloutpool_common.capabilities.forks.origin import ForkOrigin
from rolloutpool_rl.prefix_tree import prefix_tree, shared_prefixes

IDS = st.lists(st.integers(0, 2), max_size=8)


def shared(a: list[int], b: list[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


def slowly(sequences: list[list[int]]) -> list[tuple[int | None, int]]:
    """The earlier sequence with which each shares the most, the first of several."""
    found: list[tuple[int | None, int]] = []
    for index, sequence in enumerate(sequences):
        best = (
            max((shared(sequence, earlier), -at) for at, earlier in enumerate(sequences[:index])) if index else (0, 0)
        )
        found.append((-best[1], best[0]) if best[0] else (None, 0))
    return found


@given(st.lists(IDS, max_size=12))
def test_parents_are_those_of_a_search_through_all(sequences: list[list[int]]) -> None:
    assert shared_prefixes([np.array(ids, dtype=np.int64) for ids in sequences]) == slowly(sequences)


def test_large_ids_sort_as_numbers() -> None:
    sequences = [[2**31, 1], [255, 1], [2**31, 2], [256, 1], [255]]
    assert shared_prefixes([np.array(ids, dtype=np.int64) for ids in sequences]) == slowly(sequences)


def test_the_samples_of_forks_hang_below_their_parent() -> None:
    parent = rollout(sample("ask", ("sampled", "abc", 1), ("glue", "-", 1), ("sampled", "de", 2)), uid="p-0")
    origin = ForkOrigin(uid="p-0", turn=2)
    forks = [
        rollout(
            sample("ask", ("sampled", "abc", 1), ("glue", "-", 1), ("sampled", text, 2)),
            uid=f"f-{place}",
            forked_from=origin,
        )
        for place, text in enumerate(("xyz", "xw"))
    ]
    other = rollout(sample("other", ("sampled", "abc", 1)), uid="o-0")
    nodes = prefix_tree([parent, other, *forks])
    assert [(node.uid, node.parent, node.shared, node.length) for node in nodes] == [
        ("p-0", None, 0, 9),
        ("o-0", None, 0, 8),
        ("f-0", 0, 7, 10),
        ("f-1", 2, 8, 9),
    ]
    assert [(node.forked_from, node.forked_at) for node in nodes] == [(None, None), (None, None), *[("p-0", 2)] * 2]


def test_nothing_has_no_tree() -> None:
    assert prefix_tree([]) == []
    assert prefix_tree([rollout()]) == []
