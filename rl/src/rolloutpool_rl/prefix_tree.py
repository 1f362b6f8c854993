"""The prefix tree of a group: which samples begin with the same ids, and how far.

The rollouts of a group share their prompt, and forks share more: all turns before the fork. A trainer that knows it
computes what is shared once (prefix caching, tree attention), or trains it once.

Each sample gets a parent: the earlier one with which it has the most first ids in common, in the order that is given.
So an original that stands before its forks is their parent.

    0    1 2 3 | 7 8 | 9 9        None
    1    1 2 3 | 7 8 | 5          parent 0, shared 5
    2    1 2 3 | 4                parent 0, shared 3
    3    1 2 3 | 7 8 | 5 6        parent 1, shared 6

Sorted samples share the most with their neighbours, so n samples take n comparisons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rolloutpool_common.protocol.result import RolloutResult, Sample

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PrefixNode:
    """One sample in the tree of its group."""

    uid: str
    """Of its rollout."""
    sample: int
    """Which of the rollout's samples, from 0."""
    length: int
    """Ids of prompt and response."""
    parent: int | None
    """Place of its parent in the list; None where no earlier sample begins with the same id."""
    shared: int
    """How many first ids it has in common with its parent; 0 without one."""
    forked_from: str | None
    """Uid of the rollout that its rollout is a fork of."""
    forked_at: int | None
    """The turn at which it was forked."""


def prefix_tree(results: Sequence[RolloutResult]) -> list[PrefixNode]:
    """Arranges the samples of a group.

    Args:
        results: Of the group's rollouts; originals before their forks.

    Returns:
        A node for each sample, in the order of the rollouts and of their samples.
    """
    samples = [(result, index, sample) for result in results for index, sample in enumerate(result.samples)]
    links = shared_prefixes([_ids(sample) for _, _, sample in samples])
    return [
        PrefixNode(
            uid=result.uid,
            sample=index,
            length=len(sample.prompt_ids) + len(sample.response_ids),
            parent=parent,
            shared=shared,
            forked_from=None if result.forked_from is None else result.forked_from.uid,
            forked_at=None if result.forked_from is None else result.forked_from.turn,
        )
        for (result, index, sample), (parent, shared) in zip(samples, links, strict=True)
    ]


def shared_prefixes(sequences: Sequence[Ids]) -> list[tuple[int | None, int]]:
    """Finds for each sequence the earlier one that shares the most first ids with it.

    Args:
        sequences: Ids, each [T].

    Returns:
        Parent and number of shared ids of each; (None, 0) where nothing is shared. Of several parents, the first.
    """
    # Big-endian bytes sort like the numbers that they hold.
    keys = [sequence.astype(">i8").tobytes() for sequence in sequences]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    # What each sorted sequence shares with the next one. A run of them shares the least of these numbers.
    common = [_common(sequences[a], sequences[b]) for a, b in pairwise(order)]
    found: list[tuple[int | None, int]] = [(None, 0)] * len(order)
    runs = [(0, len(order))]
    while runs:
        begin, end = runs.pop()
        if end - begin < 2:
            continue
        shared = min(common[begin : end - 1])
        first = min(order[begin:end])
        if shared:
            for index in order[begin:end]:
                if index != first:
                    found[index] = first, shared
        # The parts of the run that share more come later, and overwrite what was found for it.
        borders = [begin, *(at + 1 for at in range(begin, end - 1) if common[at] == shared), end]
        runs += pairwise(borders)
    return found


def _common(a: Ids, b: Ids) -> int:
    n = min(len(a), len(b))
    differing = np.flatnonzero(a[:n] != b[:n])
    return int(differing[0]) if len(differing) else n


def _ids(sample: Sample) -> Ids:
    return np.array([*sample.prompt_ids, *sample.response_ids], dtype=np.int64)
