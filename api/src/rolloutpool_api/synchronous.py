"""`POST /rollout`: one rollout, submitted and waited for.

The rollout is durable before the wait begins and does not depend on it: a caller that goes away, or that an API
process sends home, posts the same again and joins. The wait for a slot comes before the submission, so that it is
never charged to the rollout's deadline.
"""

import time

import structlog

from rolloutpool_api.body import off_loop
from rolloutpool_api.errors import Conflict
from rolloutpool_api.services import ApiServices
from rolloutpool_api.submission import plan_v1
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.protocol.v1.response import RolloutResponse, V1Status, to_v1
from rolloutpool_common.store import IdempotencyKeyReused, StoreUnavailable, keys

__all__ = ["run"]

_log = structlog.stdlib.get_logger(__name__)

GRACE_SECONDS = 15.0
"""How long after its deadline a rollout may take to be seen as expired, a change of reconcilers included."""
RETRY_SECONDS = 1.0


async def run(services: ApiServices, request: RolloutRequest, owner: str) -> RolloutResponse:
    """Protocol v1's answer, whatever the outcome.

    Raises TypeError where the request holds an integer beyond 64 bits, `Conflict` where its id is in use with another
    body, `ShuttingDown`, and `StoreError`.
    """
    timeout_s = services.settings.rollout_timeout_seconds
    new = plan_v1(request, owner=owner, deadline_s=timeout_s)
    async with services.slots:
        services.raise_if_stopping()
        try:
            batch_id, created = await services.submit(new)
        except IdempotencyKeyReused:
            raise Conflict(
                f"rollout_id {request.rollout_id!r} belongs to another rollout: it was posted with a different body, "
                "and runs or ended less than 10 minutes ago. Use a new rollout_id, or repeat the first body to join"
            ) from None
        ids = {"rollout_id": request.rollout_id, "batch_id": batch_id}
        _log.info("v1 rollout", joined=not created, **ids)
        data = await _result(services, batch_id, timeout_s + GRACE_SECONDS)
    if data is None:
        _log.error("v1 rollout has no result after its deadline", **ids)
        return RolloutResponse(
            rollout_id=request.rollout_id,
            status=V1Status.ERROR,
            error_message=f"Rollout timeout exceeded ({timeout_s}s)",
        )
    result = await off_loop(len(data), lambda: RolloutResult.model_validate_json(data))
    return to_v1(result, tokenizer_name=request.tokenizer_name, timeout_seconds=timeout_s)


async def _result(services: ApiServices, batch_id: str, limit_s: float) -> bytes | None:
    """The batch's only result; None when there is none after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    uid = keys.uid_of(batch_id, 0)
    async with services.store.signals.watch(batch_id) as watch:
        while True:
            try:
                data = await services.store.rollouts.result(uid)
            except StoreUnavailable:
                # The rollout outlives a restart of Redis, and v1's callers don't retry: so the wait outlives it too.
                if time.monotonic() >= end:
                    raise
                await services.pause(RETRY_SECONDS)
                continue
            if data is not None or time.monotonic() >= end:
                return data
            await services.wait(watch, end - time.monotonic())
