"""Forks of a finished rollout: further rollouts that go on from one of its turns."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Response

from rolloutpool_api.access import Submitter
from rolloutpool_api.body import StrictRoute, off_loop
from rolloutpool_api.capabilities.forks.plan import plan_fork
from rolloutpool_api.checks import Catalog
from rolloutpool_api.errors import Conflict, ResourceUnknown
from rolloutpool_api.routes.batches import accepted_batch
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.routes.rollouts import RolloutName, find_uid, unknown_rollout
from rolloutpool_api.services import ServicesDep
from rolloutpool_api.submission import batch_key
from rolloutpool_common.capabilities.forks.wire import ForkRequest
from rolloutpool_common.protocol.batch import BatchAccepted
from rolloutpool_common.security.api_keys import KeyScope
from rolloutpool_common.store import IdempotencyKeyReused

router = APIRouter(tags=["rollouts"], route_class=StrictRoute)

_log = structlog.stdlib.get_logger(__name__)


@router.post(
    "/v1/rollouts/{rollout_id:path}/fork",
    summary="Go on from a turn of a finished rollout",
    status_code=202,
    response_model=BatchAccepted,
    responses=errors(404, 409, 422, 429, 503),
)
async def fork_rollout(
    rollout_id: RolloutName,
    request: ForkRequest,
    services: ServicesDep,
    caller: Submitter,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key and body give the same batch"),
    ] = None,
) -> Response:
    """A batch of `n` rollouts that have the parent's turns before `turn`, token by token, and sample the rest.

    It takes the scopes `submit` and `read`.
    """
    # A fork's results hold the parent's tokens.
    caller.must(KeyScope.READ)
    again = idempotency_key is not None and await services.store.batches.submitted(
        caller.name, batch_key(idempotency_key)
    )
    try:
        uid = await find_uid(services, rollout_id, caller)
        data = await services.store.rollouts.result(uid)
    except ResourceUnknown:
        # The same request again, whose parent may be deleted by now: its forks' batch has the parent's result.
        uid, data = rollout_id, await services.store.rollouts.trunk(again) if again else None
        if data is None:
            raise
    if data is None:
        if await services.store.rollouts.view(uid, caller.sees) is None:
            raise unknown_rollout(rollout_id)
        raise Conflict(f"rollout {uid} has not ended; a fork begins with its result")
    catalog = None if again else Catalog.of(await services.store.workers.known())
    new = await off_loop(
        len(data),
        lambda: plan_fork(
            data, request, catalog, services.restrictions, owner=caller.name, idempotency_key=idempotency_key
        ),
    )
    if new.labels["forked_from"] != uid:
        raise unknown_rollout(rollout_id)
    try:
        submitted = await services.submit(new)
    except IdempotencyKeyReused as conflict:
        raise Conflict(
            "this Idempotency-Key came with another body before; use a new key for new forks",
            batch_id=conflict.batch_id,
        ) from None
    total = len(new.rollouts)
    _log.info("rollout forked", rollout_uid=uid, turn=request.turn, batch_id=submitted.batch_id, total=total)
    return accepted_batch(submitted, total)
