"""The graders of a campaign. What each must say of a rollout follows from what its trainer sampled.

| grader | where | says | fails |
|---|---|---|---|
| `digest` | in a child process | a number made of the sampled ids; per token the id if it was sampled | sometimes |
| `moody` | on the event loop | the same number | sometimes, or hangs |
| `broken` | on the event loop | nothing | always |
| `places` | on the event loop, for groups | its place among the completed rollouts of its group | sometimes |
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_worker.graders import Grade, grader

BROKEN = "broken"
CHOICES: dict[str, dict[str, Any]] = {
    "digest": {"name": "digest", "retries": 50},
    "moody": {"name": "moody", "retries": 50},
    BROKEN: {"name": BROKEN, "retries": 1},
    "places": {"name": "places", "retries": 50},
}
"""What rollouts ask for."""
FAILS = 0.2
HANGS = 0.05


def digest_of(ids: Sequence[int]) -> float:
    """A number that other ids would hardly give."""
    return float(sum(place * token for place, token in enumerate(ids, 1)) % 9973)


def sampled(rollout: RolloutResult) -> list[int]:
    """The sampled ids, in their order."""
    return [
        token
        for sample in rollout.samples
        for token, mask in zip(sample.response_ids, sample.response_mask, strict=True)
        if mask
    ]


@grader()
def digest(rollout: RolloutResult, options: Any) -> Grade:
    """Fails now and then."""
    if random.random() < FAILS:
        raise ConnectionError
    rows = [
        [float(token * mask) for token, mask in zip(sample.response_ids, sample.response_mask, strict=True)]
        for sample in rollout.samples
    ]
    return Grade(digest_of(sampled(rollout)), {"tokens": len(sampled(rollout))}, rows)


@grader()
async def moody(rollout: RolloutResult, options: Any) -> float:
    """Fails or hangs now and then."""
    if random.random() < HANGS:
        await asyncio.Event().wait()
    if random.random() < FAILS:
        raise ConnectionError
    return digest_of(sampled(rollout))


@grader()
async def broken(rollout: RolloutResult, options: Any) -> float:
    """Never says anything."""
    raise ConnectionError


@grader(of_groups=True)
async def places(rollouts: Sequence[RolloutResult], options: Any) -> list[Grade]:
    """Takes a while, so that workers die meanwhile."""
    await asyncio.sleep(random.uniform(0, 0.5))
    if random.random() < FAILS:
        raise ConnectionError
    return [Grade(float(place), {"members": len(rollouts)}) for place, _ in enumerate(rollouts)]
