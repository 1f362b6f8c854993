"""Says what the workers can do: `GET /tools` of protocol v1, and the workers themselves.

The API has no tools of its own; everything here is what live workers announce.
"""

import time

from fastapi import APIRouter

from rolloutpool_api.access import Admin, Anybody
from rolloutpool_api.errors import NotReady
from rolloutpool_api.routes.openapi_errors import V1_UNAVAILABLE, errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.tools import ToolDefinition, ToolsResponse
from rolloutpool_common.protocol.workers import WorkersResponse

router = APIRouter()

FIRST_WORKER_SECONDS = 10.0
"""How long to wait for a worker: a v1 trainer asks once, when it starts, and workers may still be starting too."""
LOOK_SECONDS = 0.25


@router.get(
    "/tools",
    tags=["protocol v1"],
    summary="The tools that policies may call",
    responses=V1_UNAVAILABLE,
)
async def tools(services: ServicesDep, _: Anybody) -> ToolsResponse:
    """The tools of all live workers. Waits up to 10 seconds for a first worker, then answers 503."""
    end = time.monotonic() + FIRST_WORKER_SECONDS
    while True:
        found: dict[str, ToolDefinition] = {}
        live = [worker for worker in await services.store.workers.known() if worker.alive]
        for worker in live:
            for tool in worker.tool_definitions:
                found.setdefault(tool.function.name, tool)
        if live:
            return ToolsResponse(tools=list(found.values()))
        if time.monotonic() >= end:
            raise NotReady("no worker is alive, so no tools are known; start one with `rolloutpool worker`")
        await services.pause(LOOK_SECONDS)


@router.get("/v1/workers", tags=["pool"], summary="The workers, and what waits for them", responses=errors())
async def workers(services: ServicesDep, _: Admin) -> WorkersResponse:
    """Oldest worker first. Those whose announcement cannot be read are in `unreadable`, with the reason."""
    workers, unreadable = await services.store.workers.listed()
    return WorkersResponse(workers=workers, unreadable=unreadable, queues=await services.store.outbox.queue_depths())
