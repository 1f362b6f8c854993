"""Health: `/health` as protocol v1 has it, `/livez` for this process, `/readyz` for the whole pool.

A caller with a key gets more of `/health`: what controllers of the Osmosis wire read there. Protocol v1's trainers have
no keys, so their answer stays as it is, to the byte.
"""

from fastapi import APIRouter, Request

from rolloutpool_api import osmosis
from rolloutpool_api.readiness import readiness
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.health import Alive, Health, Ready
from rolloutpool_common.protocol.osmosis.response import OsmosisHealth
from rolloutpool_common.security.api_keys import GUEST

router = APIRouter()


@router.get("/health", tags=["protocol v1"], summary="Always healthy while this process answers")
async def health(request: Request, services: ServicesDep) -> OsmosisHealth | Health:
    """For readiness use `/readyz`. With a key it also has what the Osmosis SDK's `wait_idle` reads."""
    caller = request.state.caller
    # A pool without keys takes any: all its callers are one.
    owner = GUEST if not services.keys.required and "authorization" in request.headers else None
    if caller is not None:
        owner = caller.name
    return (None if owner is None else await osmosis.health(services, owner)) or Health()


@router.get("/livez", tags=["pool"], summary="Whether this process answers")
async def livez() -> Alive:
    """Restart the process when this fails."""
    return Alive()


@router.get("/readyz", tags=["pool"], summary="Whether the pool can run rollouts", responses=errors())
async def readyz(services: ServicesDep) -> Ready:
    """503 with the reasons while Redis does not answer, no worker is alive, or this process stops.

    A pool that is closed for submits is ready all the same, because results are read from it: `submits` says so.
    `warnings` name settings of Redis that put accepted work at risk, a file of keys that can't be read, and deltas that
    are doubted; the pool is ready with them.
    """
    return await readiness(services)
