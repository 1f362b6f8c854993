"""Says what operators ask: groups, dead letters, quarantined results, and whether callback ports answer."""

import asyncio
import uuid
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from rolloutpool_api.access import Admin, Reader, Submitter
from rolloutpool_api.errors import NotReady, Rejected, ResourceUnknown
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.routes.batches import BatchId
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.batch import BatchAccepted
from rolloutpool_common.protocol.groups import Groups
from rolloutpool_common.protocol.operations import DeadLetters, Preflight, PreflightRequest
from rolloutpool_common.store import keys

router = APIRouter(tags=["operations"])

PREFLIGHT_SECONDS = 20.0


@router.get("/v1/batches/{batch_id}/groups", summary="Groups of a batch and their verdicts", responses=errors(404, 422))
async def batch_groups(batch_id: BatchId, services: ServicesDep, _: Reader) -> Groups:
    """Empty if the batch has no `group` policy."""
    return Groups(groups=await services.store.batches.groups(batch_id))


@router.get("/v1/dead-letters", summary="What was given up")
async def dead_letters(
    services: ServicesDep, _: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> DeadLetters:
    """Uids, newest first. `GET /v1/rollouts/{uid}` has the failure of each."""
    reconciliation = services.store.reconciliation
    rollouts, others = await reconciliation.dead_letters(limit), await reconciliation.capability_letters(limit)
    return DeadLetters.model_validate({"rollouts": rollouts, **others})


Uid = Annotated[str, Path(description="Uid of a rollout")]


@router.post(
    "/v1/dead-letters/{uid}/requeue",
    summary="Run a dead rollout once more, as a batch of its own",
    status_code=202,
    responses=errors(404, 429),
)
async def requeue(uid: Uid, services: ServicesDep, _: Admin) -> BatchAccepted:
    """The dead rollout stays as it is. A copy of it is submitted under a new uid, without a history of crashes."""
    again = await services.store.batches.copy_of(uid)
    if again is None:
        raise ResourceUnknown(f"rollout {uid[:80]!r} is unknown, or its data was deleted")
    submitted = await services.submit(again)
    return BatchAccepted(batch_id=submitted.batch_id, total=1, rollouts=[keys.uid_of(submitted.batch_id, 0)])


@router.get("/v1/rollouts/{uid}/evidence", summary="A quarantined result, for people", responses=errors(404))
async def evidence(uid: Uid, services: ServicesDep, _: Admin) -> Response:
    """A result that contradicts itself and was therefore kept back. Never train on it."""
    kept = await services.store.rollouts.evidence(uid)
    if kept is None:
        raise ResourceUnknown(f"nothing was kept of rollout {uid[:80]!r}")
    return Response(kept, media_type="application/json")


@router.post("/v1/preflight", summary="Whether a worker reaches callback ports", responses=errors(422, 503))
async def preflight(request: PreflightRequest, services: ServicesDep, _: Submitter) -> Preflight:
    """Asks a worker to call `GET /health` at each endpoint; any answer shows that the port is reachable."""
    faults = FaultList()
    for index, url in enumerate(request.server_urls):
        if verdict := services.restrictions.targets.refuse_url(url):
            faults.add(path("server_urls", index), verdict)
    if faults.total:
        raise Rejected(faults.listed, faults.total)
    request_id = uuid.uuid4().hex
    await services.ask_preflight(request_id, request.server_urls)
    deadline = asyncio.get_running_loop().time() + PREFLIGHT_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if (answer := await services.store.preflights.take(request_id)) is not None:
            return answer
        await services.pause(0.1)
    raise NotReady(f"no worker has answered within {PREFLIGHT_SECONDS:.0f} s; is one alive? (GET /v1/workers)")
