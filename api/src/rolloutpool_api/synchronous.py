"""`POST /rollout` of protocol v1: submits one rollout and waits for its end.

1. The request waits for one of MAX_CONCURRENT_ROLLOUTS slots. It is not submitted yet, so this wait does not count
   towards the rollout's deadline.
2. The rollout is submitted under its rollout_id and is durable from then on. It does not depend on the wait.
3. The request waits for the result. A caller that went away, or whose API process stopped, posts the same body again
   and joins the rollout that is running.
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
"""Seconds after its deadline until a rollout is found expired, even if another API process has to take over."""
RETRY_SECONDS = 1.0


async def run(services: ApiServices, request: RolloutRequest, owner: str) -> RolloutResponse:
    """Runs one rollout.

    Args:
        services: Of this process.
        request: Validated.
        owner: The name of the key that submits it.

    Returns:
        Protocol v1's answer, which also says when the rollout failed.

    Raises:
        TypeError: The request holds an integer beyond 64 bits.
        Conflict: Its rollout_id is in use with another body.
        ShuttingDown: This process stops.
        StoreError: Redis refused or did not answer.
    """
    timeout_s = services.settings.rollout_timeout_seconds
    new = plan_v1(request, owner=owner, deadline_s=timeout_s)
    async with services.slots:
        # The process may have been told to stop during the wait for a slot. Nothing is submitted yet, so the caller
        # loses nothing.
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
    # The reconciler should have ended the rollout by now. Protocol v1's caller gets an answer nevertheless.
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
    """Waits for the batch's only result; None if there is none after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    uid = keys.uid_of(batch_id, 0)
    # Watched before the first look: otherwise a result that comes between look and wait would not wake us.
    async with services.store.signals.watch(batch_id) as watch:
        while True:
            try:
                data = await services.store.rollouts.result(uid)
            except StoreUnavailable:
                # The rollout survives a restart of Redis, and v1's callers do not retry, so the wait goes on too.
                if time.monotonic() >= end:
                    raise
                await services.pause(RETRY_SECONDS)
                continue
            if data is not None or time.monotonic() >= end:
                return data
            await services.wait(watch, end - time.monotonic())
