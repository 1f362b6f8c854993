"""Annotations: added by the batch's owner, read back per rollout, and as statistics of groups."""

import asyncio
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Header, Query, Request
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
from rolloutpool_api.errors import AnnotationsFull, MalformedBody, MemoryShort, Rejected
from rolloutpool_api.fault_list import FaultList
from rolloutpool_api.routes.batches import BatchId, unknown_batch
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.routes.rollouts import KnownRollout
from rolloutpool_api.services import ApiServices, ServicesDep
from rolloutpool_common.capabilities.grading.annotating import (
    AnnotationRequest,
    AnnotationsAccepted,
    GroupStatisticsList,
    RolloutAnnotations,
)
from rolloutpool_common.capabilities.grading.annotations import Annotations
from rolloutpool_common.store import keys

router = APIRouter()

_log = structlog.stdlib.get_logger(__name__)

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
    used = await Annotations(services.store).append(
        batch_id, request_id(idempotency_key), checked.scalars, checked.streams, max_bytes=limit
    )
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
