"""Health: `/health` as protocol v1 has it, `/livez` for this process, `/readyz` for the whole pool.

A caller with a key gets more of `/health`: what other wires say there. Protocol v1's trainers have no keys, so their
answer stays as it is, to the byte.
"""

from functools import reduce
from operator import or_
from typing import Any

from fastapi import APIRouter, Request

from rolloutpool_api.composition import wires
from rolloutpool_api.readiness import readiness
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.health import Alive, Health, Ready
from rolloutpool_common.security.api_keys import GUEST

router = APIRouter()

_ANSWERS: Any = reduce(or_, (*(wire.health_model for wire in wires()), Health))


@router.get(
    "/health",
    tags=["protocol v1"],
    summary="Always healthy while this process answers",
    response_model=_ANSWERS,
)
async def health(request: Request, services: ServicesDep) -> Health:
    """For readiness use `/readyz`. With a key it also has what the Osmosis SDK's `wait_idle` reads."""
    caller = request.state.caller
    # A pool without keys takes any: all its callers are one.
    owner = GUEST if not services.keys.required and "authorization" in request.headers else None
    if caller is not None:
        owner = caller.name
    if owner is not None:
        for wire in wires():
            if (more := await wire.health(services, owner)) is not None:
                return more
    return Health()


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
