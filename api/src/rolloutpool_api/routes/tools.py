"""What the workers can do: `GET /tools` of protocol v1, and the workers themselves.

The API has no tools of its own; everything here is what live workers announce.
"""

import time
from datetime import UTC, datetime

from fastapi import APIRouter
from pydantic import BaseModel

from rolloutpool_api.access import Admin, Anybody
from rolloutpool_api.errors import NotReady
from rolloutpool_api.pool import PoolDep
from rolloutpool_api.routes.openapi_errors import V1_UNAVAILABLE, errors
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.messages import ToolDefinition, ToolsResponse
from rolloutpool_common.store import WorkerInfo

__all__ = ["Queue", "WorkerView", "WorkersResponse", "router"]

router = APIRouter()

FIRST_WORKER_SECONDS = 10.0
"""A v1 trainer asks for the tools once, at its start, perhaps before the workers are up."""
LOOK_SECONDS = 0.25


class WorkerView(BaseModel):
    """One worker process."""

    worker_id: str
    host: str
    pid: int
    alive: bool
    """Whether it beat lately; a dead one disappears once its rollouts are back in the queue."""
    slots: int
    """Rollouts that it runs at once."""
    running: int
    tools: list[str]
    agents: list[str]
    termination_strategies: list[str]
    tokenizers: dict[str, dict[str, str]]
    """Warm tokenizers: name to fingerprint."""
    versions: dict[str, str]
    started_at: datetime
    last_beat_age_s: float

    @classmethod
    def of(cls, info: WorkerInfo) -> "WorkerView":
        """The view of what a worker announces."""
        fields = info._asdict()
        fields["tools"] = [tool.function.name for tool in info.tools]
        fields["started_at"] = datetime.fromtimestamp(info.started_at, UTC)
        return cls.model_validate(fields)


class Queue(BaseModel):
    """Rollouts of one priority class that no worker has."""

    outbox: int
    """Accepted, not in the broker yet."""
    published: int
    """In the broker."""


class WorkersResponse(BaseModel):
    """Answer of `GET /v1/workers`."""

    workers: list[WorkerView]
    queues: dict[Priority, Queue]


@router.get(
    "/tools",
    tags=["protocol v1"],
    summary="The tools that policies may call",
    responses=V1_UNAVAILABLE,
)
async def tools(pool: PoolDep, _: Anybody) -> ToolsResponse:
    """All tools of the live workers; waits up to 10 seconds for a first worker, then answers 503."""
    end = time.monotonic() + FIRST_WORKER_SECONDS
    while True:
        found: dict[str, ToolDefinition] = {}
        live = [worker for worker in await pool.store.workers.known() if worker.alive]
        for worker in live:
            for tool in worker.tools:
                found.setdefault(tool.function.name, tool)
        if live:
            return ToolsResponse(tools=list(found.values()))
        if time.monotonic() >= end:
            raise NotReady("no worker is alive, so no tools are known; start one with `rolloutpool worker`")
        await pool.pause(LOOK_SECONDS)


@router.get("/v1/workers", tags=["pool"], summary="The workers, and what waits for them", responses=errors())
async def workers(pool: PoolDep, _: Admin) -> WorkersResponse:
    """Oldest worker first."""
    depths = await pool.store.outbox.queue_depths()
    return WorkersResponse(
        workers=[WorkerView.of(info) for info in await pool.store.workers.known()],
        queues={priority: Queue(**depth._asdict()) for priority, depth in depths.items()},
    )
