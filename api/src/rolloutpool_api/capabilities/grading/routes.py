"""Regrades: rollouts that have ended are graded again, by a worker, and the grades become annotations."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Path

from rolloutpool_api.access import Reader, Submitter
from rolloutpool_api.capabilities.grading import annotation_routes
from rolloutpool_api.capabilities.grading.annotations import indexes_of, request_id
from rolloutpool_api.checks import Catalog
from rolloutpool_api.errors import Rejected, ResourceUnknown
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.routes.batches import BatchId
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.capabilities.grading.annotating import AnnotationItem, AnnotationRequest
from rolloutpool_common.capabilities.grading.regrades import REGRADE_TASK, RegradeJob, Regrades
from rolloutpool_common.capabilities.grading.regrading import Regrade, RegradeRequest, RegradeState

router = APIRouter(tags=["batches"])
routers = (annotation_routes.router, router)

_log = structlog.stdlib.get_logger(__name__)


@router.post(
    "/v1/batches/{batch_id}/regrades",
    summary="Grade ended rollouts again, without sampling",
    status_code=202,
    responses=errors(404, 422),
)
async def regrade(
    batch_id: BatchId,
    request: RegradeRequest,
    services: ServicesDep,
    _: Submitter,
    total: annotation_routes.BatchTotal,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Regrade:
    """A worker does it. Grades are added as annotations; no result that was delivered is changed.

    With an `Idempotency-Key` the request may be repeated, and is carried out once.
    """
    faults = FaultList()
    indexes = _indexes(request, batch_id, total, faults)
    catalog = Catalog.of(await services.store.workers.known())
    if catalog is not None and request.grader.name not in (graders := catalog.others.get("grader", ())):
        known = ", ".join(sorted(graders)) or "none"
        faults.add(path("grader", "name"), f"no live worker has the grader {request.grader.name!r}; they have: {known}")
    if faults.total:
        raise Rejected(faults.listed, faults.total)
    job = RegradeJob(
        batch=batch_id,
        grader=request.grader,
        annotation=request.annotation,
        indexes=indexes,
        max_bytes=total * services.settings.annotation_kb * 1024,
    )
    regrade_id = request_id(idempotency_key, f"{batch_id}/")
    await Regrades(services.store).create(regrade_id, job)
    _log.info("regrade", batch_id=batch_id, regrade_id=regrade_id, rollouts=len(indexes))
    return await _found(services, batch_id, regrade_id)


@router.get("/v1/batches/{batch_id}/regrades/{regrade_id}", summary="How far a regrade is", responses=errors(404))
async def regrade_state(
    batch_id: BatchId,
    regrade_id: Annotated[str, Path(description="As its request was answered")],
    services: ServicesDep,
    _: Reader,
) -> Regrade:
    """Ask until it is `complete`: whether its worker has died is found by asking, and it then goes on elsewhere."""
    return await _found(services, batch_id, regrade_id)


async def _found(services: ServicesDep, batch_id: str, regrade_id: str) -> Regrade:
    """Reads a regrade, and has a worker told of one that nobody does."""
    known = await Regrades(services.store).read(regrade_id)
    # Another batch may be another owner's.
    if known is None or (found := known[1]).batch_id != batch_id:
        raise ResourceUnknown(f"regrade {regrade_id[:64]!r} of batch {batch_id!r} is unknown, or its data was deleted")
    if found.state is RegradeState.RUNNING and await Regrades(services.store).ask(regrade_id):
        await services.ask_worker(REGRADE_TASK, regrade_id, needs=[f"grader:{found.grader}"])
    return found


def _indexes(request: RegradeRequest, batch_id: str, total: int, faults: FaultList) -> list[int]:
    """The rollouts that it names, each once, in their order; all of the batch where it names none."""
    if request.rollouts is None:
        return list(range(total))
    named = AnnotationRequest(items=[AnnotationItem(rollout=one) for one in request.rollouts])
    return sorted(set(indexes_of(named, batch_id, total, faults)))
