"""`GET /v1/overview`: what the first page of the viewer shows."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from rolloutpool_api.access import Reader
from rolloutpool_api.capabilities.overview.troubles import Overview
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.capabilities.overview.wire import PoolOverview

router = APIRouter(tags=["pool"])


async def _kept(request: Request) -> Overview:
    """Returns the overviews of this process, which are kept for a second."""
    state = request.app.state
    if not hasattr(state, "overview"):
        state.overview = Overview()
    kept: Overview = state.overview
    return kept


@router.get("/v1/overview", summary="What is wrong now, and what to do", responses=errors())
async def overview(kept: Annotated[Overview, Depends(_kept)], services: ServicesDep, caller: Reader) -> PoolOverview:
    """Looks at the 100 newest batches that you may see; it is at most a second old. `admin` sees the pool as well."""
    return await kept.read(services, caller.sees)
