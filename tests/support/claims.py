"""Claims for tests that need no store."""

from typing import Any

from tests.support.batches import NOWHERE

from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.sampling import BatchSamplingParams
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim


def claim_of(*, token: str = "token", retries: int = 0, v1: bool = False, more_waiting: bool = False) -> Claim:
    """The first claim on a rollout of one message."""
    messages: list[Any] = [{"role": "user", "content": "5 + 3"}]
    spec = RolloutSpec(
        rollout_id="r",
        server_url=NOWHERE,
        tokenizer_name="t",
        messages=messages,
        sampling_params=BatchSamplingParams(max_tokens=9),
        v1=v1,
    )
    return Claim(
        uid="b-0",
        batch_id="b",
        index=0,
        worker_id="w",
        role=WorkerRole.SHARED,
        token=token,
        attempt=1,
        crashes=0,
        retries=retries,
        deferrals=0,
        journal_length=0,
        clean=True,
        group=None,
        deadline_in_s=None,
        queued_ms=0.0,
        spec=spec,
        more_waiting=more_waiting,
    )
