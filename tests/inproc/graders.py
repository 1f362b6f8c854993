"""Graders of the pool in this process. One that fails does so once per rollout, so each rollout gets its grade."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_worker.graders import grader

failed: set[str] = set()
"""Rollouts whose grader has failed once."""


def reset() -> None:
    """Begins anew, for another history."""
    failed.clear()


def sampled_ids(result: RolloutResult) -> int:
    """What a rollout is worth."""
    return sum(sum(sample.response_mask) for sample in result.samples)


@grader("sampled_ids")
async def one(rollout: RolloutResult, options: Any) -> float:
    """Counts the sampled ids."""
    await asyncio.sleep(options)
    _fail_once(rollout)
    return float(sampled_ids(rollout))


@grader("sampled_ids_of_group", of_groups=True)
async def several(rollouts: Sequence[RolloutResult], options: Any) -> list[float]:
    """Counts those of each."""
    await asyncio.sleep(options)
    _fail_once(rollouts[0])
    return [float(sampled_ids(rollout)) for rollout in rollouts]


def _fail_once(rollout: RolloutResult) -> None:
    if rollout.uid not in failed and random.random() < 0.1:
        failed.add(rollout.uid)
        raise RuntimeError("not this time")
