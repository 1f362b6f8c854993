"""`GET /v1/overview`: what the first page of the viewer shows."""

from fastapi import APIRouter, Request

from rolloutpool_api.access import Reader
from rolloutpool_api.overview import Overview
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.overview import PoolOverview

router = APIRouter(tags=["pool"])


@router.get("/v1/overview", summary="What is wrong now, and what to do", responses=errors())
async def overview(request: Request, services: ServicesDep, caller: Reader) -> PoolOverview:
    """Looks at the 100 newest batches that you may see; it is at most a second old. `admin` sees the pool as well."""
    made: Overview = request.app.state.overview
    return await made.read(services, caller.sees)
