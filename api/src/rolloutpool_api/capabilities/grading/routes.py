"""What is said of ended rollouts, and read back: annotations by the batch's owner, and grades that are made again.

A worker does a regrade. Whoever asks how far it is has one told of it where none does it.
"""

import asyncio
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from rolloutpool_api.access import Reader, Submitter
from rolloutpool_api.body import parse, read_json_body, refuse_repeated_keys
from rolloutpool_api.capabilities.grading.annotations import (
    CheckedAnnotations,
    check_annotations,
    group_statistics,
    indexes_of,
    request_id,
    scores,
)
from rolloutpool_api.checks import Catalog
from rolloutpool_api.errors import AnnotationsFull, MalformedBody, MemoryShort, Rejected, ResourceUnknown
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.routes.batches import BatchId, unknown_batch
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.routes.rollouts import KnownRollout
from rolloutpool_api.services import ApiServices, ServicesDep
from rolloutpool_common.capabilities.grading.annotating import (
    AnnotationItem,
    AnnotationRequest,
    AnnotationsAccepted,
    GroupStatisticsList,
    Regrade,
    RegradeRequest,
    RegradeState,
    RolloutAnnotations,
)
from rolloutpool_common.capabilities.grading.annotations import Annotations
from rolloutpool_common.capabilities.grading.regrades import REGRADE_TASK, RegradeJob, Regrades
from rolloutpool_common.store import keys

router = APIRouter()

_log = structlog.stdlib.get_logger(__name__)

GRADE_BYTES = 200
"""About what the grade of a rollout takes as an annotation, if it has no rewards of tokens."""

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/AnnotationRequest"},
                "example": {"items": [{"rollout": 0, "scalars": {"reward": 1.0}}]},
            }
        },
    }
}


async def batch_total(batch_id: BatchId, services: ServicesDep) -> int:
    """Returns how many rollouts a batch has; raises `ResourceUnknown` where it was deleted just now."""
    total = await services.store.batches.total(batch_id, None)
    if total is None:
        raise unknown_batch(batch_id)
    return total


BatchTotal = Annotated[int, Depends(batch_total)]


@router.post(
    "/v1/batches/{batch_id}/annotations",
    tags=["batches"],
    summary="Add rewards and other figures to rollouts",
    responses=errors(400, 404, 413, 415, 422),
    openapi_extra=_BODY,
)
async def annotate(
    batch_id: BatchId,
    request: Request,
    services: ServicesDep,
    caller: Submitter,
    total: BatchTotal,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> AnnotationsAccepted:
    """All of it is added, or nothing. Nothing is ever changed: where a name comes again, readers see the later value.

    With an `Idempotency-Key` the request may be repeated, and is carried out once. A body has at most 1 MB.
    """
    body = await read_json_body(request)
    # A body of 1 MB takes tens of milliseconds.
    wanted = await asyncio.to_thread(_parse, body)
    checked = await _check(services, batch_id, wanted, total)
    # Annotations must not take memory that is promised to open rollouts.
    if not services.has_room(await services.store.batches.capacity(), caller.name, len(body)):
        raise MemoryShort
    limit = total * services.settings.annotation_kb * 1024
    asked = request_id(idempotency_key, batch_id, body)
    used = await Annotations(services.store).append(batch_id, asked, checked.scalars, checked.streams, max_bytes=limit)
    if used is None:
        raise AnnotationsFull
    _log.info("annotated", batch_id=batch_id, items=len(wanted.items))
    return AnnotationsAccepted(batch_id=batch_id, bytes_used=used, bytes_left=max(limit - used, 0))


def _parse(body: bytes) -> AnnotationRequest:
    try:
        document = parse(body)
        refuse_repeated_keys(body)
    except ValueError as error:
        raise MalformedBody(f"the body is not JSON, or ambiguous: {error}") from None
    try:
        return AnnotationRequest.model_validate(document)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False, include_url=False)) from None


async def _check(services: ApiServices, batch_id: str, wanted: AnnotationRequest, total: int) -> CheckedAnnotations:
    """Checks a request against the batch; returns what is to be stored."""
    faults = FaultList()
    indexes = indexes_of(wanted, batch_id, total, faults)
    if not faults.total:
        with_streams = [index for index, item in zip(indexes, wanted.items, strict=True) if item.streams]
        # Only rollouts with streams need their rows.
        stop = max(with_streams, default=-1) + 1
        table = await services.store.rows.read(batch_id, min(with_streams, default=0), stop)
        if table is None:
            raise unknown_batch(batch_id)
        known = list(await Annotations(services.store).scalars(batch_id))
        checked = check_annotations(wanted, indexes, table, known, faults)
    if faults.total:
        raise Rejected(faults.listed, faults.total)
    return checked


@router.get(
    "/v1/rollouts/{uid}/annotations",
    tags=["rollouts"],
    summary="What was said of one rollout: scalars, and streams per token",
    responses=errors(404),
)
async def rollout_annotations(place: KnownRollout, services: ServicesDep, _: Reader) -> RolloutAnnotations:
    """`GET /v1/batches/{id}/rollouts` has the scalars of all rollouts, as columns `annotations.NAME`."""
    batch_id, index = place
    scalars = await Annotations(services.store).scalars(batch_id)
    return RolloutAnnotations(
        uid=keys.uid_of(batch_id, index),
        scalars={name: values[index] for name, values in scalars.items() if index in values},
        streams=await Annotations(services.store).streams(batch_id, index),
    )


@router.get(
    "/v1/batches/{batch_id}/group-statistics",
    tags=["batches"],
    summary="Size, length and reward spread of each group",
    responses=errors(404, 422),
)
async def batch_group_statistics(
    batch_id: BatchId,
    services: ServicesDep,
    _: Reader,
    of: Annotated[str, Query(max_length=64, description="`reward`, or the name of an annotation")] = "reward",
) -> GroupStatisticsList:
    """For every batch with groups, also without a group policy. A reward that was annotated goes before a grader's."""
    table = await services.store.rows.read(batch_id)
    if table is None:
        raise unknown_batch(batch_id)
    values = scores(table, await Annotations(services.store).scalars(batch_id), of)
    groups = await asyncio.to_thread(group_statistics, table, values)
    return GroupStatisticsList(of=of, groups=groups, zero_spread=sum(group.zero_spread for group in groups))


@router.post(
    "/v1/batches/{batch_id}/regrades",
    tags=["batches"],
    summary="Grade ended rollouts again, without sampling",
    status_code=202,
    responses=errors(404, 422),
)
async def regrade(
    batch_id: BatchId,
    request: RegradeRequest,
    services: ServicesDep,
    caller: Submitter,
    total: BatchTotal,
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
    regrade_id = request_id(idempotency_key, batch_id, request.model_dump_json().encode())
    if await Regrades(services.store).read(regrade_id) is None:
        # A worker adds the grades, and asks nobody.
        if not services.has_room(await services.store.batches.capacity(), caller.name, GRADE_BYTES * len(indexes)):
            raise MemoryShort
        await Regrades(services.store).create(regrade_id, job)
    _log.info("regrade", batch_id=batch_id, regrade_id=regrade_id, rollouts=len(indexes))
    return await _found(services, batch_id, regrade_id)


@router.get(
    "/v1/batches/{batch_id}/regrades/{regrade_id}",
    tags=["batches"],
    summary="How far a regrade is",
    responses=errors(404),
)
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
