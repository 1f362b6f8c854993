"""Results to look at, of a rollout that has completed."""

from typing import Any

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Sample, SampleSegment

_IDS = list(range(2000))
LONG_SAMPLE = Sample(
    prompt_ids=_IDS,
    response_ids=_IDS,
    response_mask=[1] * len(_IDS),
    response_logprobs=[-0.5] * len(_IDS),
    segments=[SampleSegment(kind="sampled", start=0, n=len(_IDS), turn=1)],
)
"""Makes its result long enough to be compressed."""


def completed(**fields: Any) -> RolloutResult:
    """The result of a completed rollout; `fields` are what it has besides, or instead."""
    base: dict[str, Any] = {
        "uid": "b-0",
        "rollout_id": "r",
        "batch_id": "b",
        "index": 0,
        "status": RolloutStatus.COMPLETED,
        "finish_reason": FinishReason.STOP,
    }
    return RolloutResult(**{**base, **fields})
