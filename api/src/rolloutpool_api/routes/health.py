"""Health: `/health` as protocol v1 has it, `/livez` for this process, `/readyz` for the whole pool."""

from fastapi import APIRouter

from rolloutpool_api.errors import NotReady
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.health import Alive, Health, Ready
from rolloutpool_common.store import StoreError

__all__ = ["router"]

router = APIRouter()


@router.get("/health", tags=["protocol v1"], summary="Always healthy while this process answers")
async def health() -> Health:
    """For readiness use `/readyz`."""
    return Health()


@router.get("/livez", tags=["pool"], summary="Whether this process answers")
async def livez() -> Alive:
    """Restart the process when this fails."""
    return Alive()


@router.get("/readyz", tags=["pool"], summary="Whether the pool can run rollouts", responses=errors())
async def readyz(services: ServicesDep) -> Ready:
    """503 with the reasons while Redis does not answer, no worker is alive, or this process stops.

    `warnings` name settings of Redis that put accepted work at risk; the pool is ready with them.
    """
    services.raise_if_stopping()
    try:
        redis_ms = await services.store.ping()
        warnings = await services.store.warnings()
        live = sum(worker.alive for worker in await services.store.workers.known())
    except StoreError as error:
        raise NotReady("not ready", reasons=[error.message]) from None
    if not live:
        raise NotReady("not ready", reasons=["no worker is alive; start one with `rolloutpool worker`"])
    return Ready(redis_ms=redis_ms, workers=live, warnings=warnings)
