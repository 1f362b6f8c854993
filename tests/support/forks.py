"""Forks of rollouts that a test has run, made as the API makes them."""

from collections.abc import Sequence
from typing import Any

from tests.support.batches import OWNER, uids_of
from tests.support.inside_worker import InsideWorker

from rolloutpool_api.capabilities.forks.plan import plan_fork
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_common.capabilities.forks.wire import ForkRequest
from rolloutpool_common.protocol.result import RolloutResult, Sample, encode_result
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import NewBatch

RULES = Restrictions(Targets.loopback(), keeps_secrets=True, max_messages=1000)


def planned(parent: RolloutResult, turn: int, **request: Any) -> NewBatch:
    """The batch of forks."""
    document = ForkRequest.model_validate({"turn": turn, **request})
    return plan_fork(encode_result(parent), document, None, RULES, owner=OWNER, idempotency_key=None)


async def submitted(inside: InsideWorker, parent: RolloutResult, turn: int, **request: Any) -> list[str]:
    """Submits forks; returns their uids."""
    batch = planned(parent, turn, **request)
    await inside.services.store.batches.submit(batch)
    return uids_of(batch)


async def fork(inside: InsideWorker, parent: RolloutResult, turn: int, **request: Any) -> list[RolloutResult]:
    """Submits forks and runs them, one after the other."""
    uids = await submitted(inside, parent, turn, **request)
    for uid in uids:
        await inside.take(uid)
    return [await inside.result(uid) for uid in uids]


def whole(sample: Sample) -> list[int]:
    """All ids of a sample."""
    return [*sample.prompt_ids, *sample.response_ids]


def context_before(samples: Sequence[Sample], turn: int) -> list[int]:
    """What a turn was sampled after."""
    for sample in samples:
        for segment in sample.segments:
            if segment.kind == "sampled" and segment.turn == turn:
                return whole(sample)[: len(sample.prompt_ids) + segment.start]
    raise AssertionError(f"turn {turn} is in no sample")
