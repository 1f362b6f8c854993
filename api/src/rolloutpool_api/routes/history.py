"""Says what happened to a rollout: its claims, its requeues with their reasons, and what it waits for."""

from typing import Annotated

from fastapi import APIRouter, Path

from rolloutpool_api.access import Reader
from rolloutpool_api.errors import ResourceUnknown
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.history import RolloutHistory

router = APIRouter(tags=["rollouts"])


@router.get("/v1/rollouts/{uid}/history", summary="Claims and requeues of one rollout", responses=errors(404))
async def rollout_history(
    uid: Annotated[str, Path(description="Uid of a rollout")], services: ServicesDep, caller: Reader
) -> RolloutHistory:
    """Who had it and when, and why it was queued again. Also while it runs."""
    found = await services.store.histories.read(uid, caller.sees)
    if found is None:
        raise ResourceUnknown(f"rollout {uid[:80]!r} is unknown, or its data was deleted")
    await services.note_read(uid.rpartition("-")[0], caller.name)
    return found
