"""Batches: how they are submitted, followed (by page, long-poll or event), cancelled and deleted."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import structlog
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field

from rolloutpool_api import events
from rolloutpool_api.access import Anybody, Principal, Reader, Submitter
from rolloutpool_api.body import off_loop, parse, read_json_body, refuse_repeated_keys
from rolloutpool_api.checks import Catalog
from rolloutpool_api.errors import Conflict, MalformedBody, Rejected, ResourceUnknown
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.results import START, View, check_cursor, read_page
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_api.submission import batch_key, plan_batch
from rolloutpool_common.protocol.batch import BatchAccepted, BatchCancelled, BatchPurged, BatchStatus
from rolloutpool_common.protocol.ids import is_batch_id
from rolloutpool_common.protocol.result import ResultPage
from rolloutpool_common.protocol.rows import SummaryPage
from rolloutpool_common.security.api_keys import KeyScope
from rolloutpool_common.store import IdempotencyKeyReused, NewBatch, Submitted, keys

router = APIRouter(prefix="/v1/batches", tags=["batches"])

_log = structlog.stdlib.get_logger(__name__)

_NDJSON = "application/x-ndjson"

_EXAMPLE = {
    "defaults": {
        "tokenizer_name": "rolloutpool/tiny",
        "sampling_params": {"temperature": 0.7, "max_tokens": 512},
        "max_turns": 8,
    },
    "trainer": {"host": "trainer.example", "base_port": 8081, "workers": 4},
    "rollouts": [
        {
            "rollout_id": "step12-prompt0",
            "n": 8,
            "messages": [{"role": "user", "content": "Calculate 15 * 23"}],
            "metadata": {"answer": 345},
        },
        {"group": "other", "messages": [{"role": "user", "content": "Calculate 7 / 2"}], "max_turns": 4},
    ],
    "labels": {"run": "job7", "step": "12"},
}

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/BatchRequest"}, "example": _EXAMPLE}},
    }
}


async def known_batch(
    batch_id: Annotated[str, Path(description="As `POST /v1/batches` answered it")],
    services: ServicesDep,
    caller: Anybody,
) -> str:
    """Returns the id of a batch that the caller may see, or raises `ResourceUnknown`."""
    known = is_batch_id(batch_id)
    if not known or await services.store.batches.total(batch_id, caller.sees, reader=caller.name) is None:
        raise unknown_batch(batch_id)
    return batch_id


BatchId = Annotated[str, Depends(known_batch)]


def unknown_batch(batch_id: str) -> ResourceUnknown:
    """Says that there is no such batch for this caller."""
    return ResourceUnknown(f"batch {batch_id[:64]!r} is unknown, or its data was deleted")


@router.post(
    "",
    summary="Submit up to 10,000 rollouts",
    status_code=202,
    response_model=BatchAccepted,
    responses={
        200: {"model": BatchAccepted, "description": "This Idempotency-Key brought this very batch before"},
        **errors(400, 409, 413, 415, 422, 429),
    },
    openapi_extra=_BODY,
)
async def submit_batch(
    request: Request,
    services: ServicesDep,
    caller: Submitter,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="Makes the request safe to repeat: the same key and body give the same batch",
        ),
    ] = None,
) -> Response:
    """Accepted whole or rejected whole; once accepted, it is durable. A rejection lists every fault with its path.

    `defaults` hold for every rollout, a rollout's own fields win (`sampling_params` and `metadata` key by key).
    Groups take the trainer's endpoints in turn; a rollout stays on its endpoint, and a group stays together.
    """
    body = await read_json_body(request)
    # A batch that was accepted before is not checked again against the workers that live now.
    replay = idempotency_key is not None and await services.store.batches.submitted(
        caller.name, batch_key(idempotency_key)
    )
    catalog = None if replay else Catalog.of(await services.store.workers.known())
    try:
        new = await off_loop(len(body), lambda: _plan(body, catalog, services.restrictions, caller, idempotency_key))
    except Rejected as rejected:
        _log.info("batch rejected", faults=rejected.total)
        raise
    try:
        submitted = await services.submit(new)
    except IdempotencyKeyReused as conflict:
        raise Conflict(
            "this Idempotency-Key came with another body before; use a new key for a new batch",
            batch_id=conflict.batch_id,
        ) from None
    batch_id, total = submitted.batch_id, len(new.rollouts)
    _log.info("batch accepted", batch_id=batch_id, total=total, priority=new.priority, replayed=not submitted.created)
    return accepted_batch(submitted, total)


def accepted_batch(submitted: Submitted, total: int) -> Response:
    """Answers what was submitted: 202, or 200 where its Idempotency-Key brought it before."""
    batch_id = submitted.batch_id
    accepted = BatchAccepted(
        batch_id=batch_id, total=total, rollouts=[keys.uid_of(batch_id, index) for index in range(total)]
    )
    headers = {"Location": f"/v1/batches/{batch_id}"}
    if not submitted.created:
        headers["Idempotency-Replayed"] = "true"
    return Response(
        accepted.model_dump_json(),
        status_code=202 if submitted.created else 200,
        headers=headers,
        media_type="application/json",
    )


def _plan(
    body: bytes, catalog: Catalog | None, restrictions: Restrictions, caller: Principal, idempotency_key: str | None
) -> NewBatch:
    try:
        document = parse(body)
    except ValueError as error:
        raise MalformedBody(f"the body is not JSON: {error}") from None
    try:
        refuse_repeated_keys(body)
    except ValueError as error:
        raise MalformedBody(f"the body is ambiguous: {error}") from None
    return plan_batch(document, catalog, restrictions, owner=caller.name, idempotency_key=idempotency_key)


@router.get("/{batch_id}", summary="State of a batch: counts, progress, rates", responses=errors(404, 422))
async def batch_status(batch_id: BatchId, services: ServicesDep, caller: Reader) -> BatchStatus:
    """Counts by state sum to `total`."""
    status = await services.store.batches.status(batch_id, caller.sees)
    if status is None:
        raise unknown_batch(batch_id)
    return status


class ResultsQuery(BaseModel):
    """Says which results a page has, and in which form."""

    cursor: str = Field(START, description="`0`, or the cursor of the last result that you have")
    limit: int = Field(100, ge=1, le=1000)
    wait: float = Field(0, ge=0, le=60, description="Seconds to wait for a first result")
    format: Literal["json", "ndjson"] | None = Field(None, description="Wins over `Accept`")
    view: View = Field("full", description="`summary`: rows of the table in place of results")


@router.get(
    "/{batch_id}/results",
    summary="Results in the order in which they ended, by cursor",
    response_model=ResultPage | SummaryPage,
    responses={
        200: {"content": {_NDJSON: {"schema": {"type": "string"}}}},
        **errors(400, 404, 410, 422),
    },
)
async def batch_results(
    batch_id: BatchId,
    services: ServicesDep,
    caller: Reader,
    asked: Annotated[ResultsQuery, Query()],
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """A page may be shorter than `limit`; go on with `next_cursor` until `complete`.

    As NDJSON (`Accept: application/x-ndjson`, or `format=ndjson`) each line is one item, and `X-Next-Cursor` and
    `X-Batch-Complete` carry the rest.
    """
    async with services.kept_lease(batch_id, caller.name if asked.wait else None):
        cursor = check_cursor(asked.cursor)
        page = await read_page(services, batch_id, cursor, limit=asked.limit, wait_s=asked.wait, view=asked.view)
    headers = {"X-Next-Cursor": page.next_cursor, "X-Batch-Complete": str(page.complete).lower()}
    if asked.format == "ndjson" or (asked.format is None and _NDJSON in accept):
        return Response(page.ndjson(), headers=headers, media_type=_NDJSON)
    return Response(page.json(), headers=headers, media_type="application/json")


async def _resumed(last_event_id: Annotated[str, Header(description="Resume after this event")] = START) -> str:
    return check_cursor(last_event_id)


@router.get(
    "/{batch_id}/events",
    summary="Server-sent events: result, progress, complete",
    response_class=EventSourceResponse,
    responses=errors(400, 404, 422),
)
async def batch_events(
    batch_id: BatchId,
    services: ServicesDep,
    caller: Reader,
    cursor: Annotated[str, Depends(_resumed)],
    view: Annotated[View, Query(description="`summary`: each `result` has the rollout's row")] = "full",
) -> AsyncIterator[ServerSentEvent]:
    """`result` per ended rollout (id = cursor), `progress` at most twice a second, `complete` at the end.

    Reconnect with `Last-Event-ID` to go on where the stream broke off.
    """
    async with services.kept_lease(batch_id, caller.name):
        async for event in events.stream(services, batch_id, cursor, caller, view):
            yield event


@router.delete(
    "/{batch_id}",
    summary="Cancel a batch, or delete what is kept of it",
    responses=errors(404, 409, 422),
)
async def cancel_batch(
    batch_id: BatchId,
    services: ServicesDep,
    caller: Submitter,
    purge: Annotated[bool, Query(description="Delete the data of a batch that has ended")] = False,
) -> BatchCancelled | BatchPurged:
    """Cancelling ends what has not ended; results stay readable. Purging a running batch is a conflict.

    To purge takes the scope `admin`.
    """
    if purge:
        caller.must(KeyScope.ADMIN)
        await services.store.batches.delete(batch_id)
        _log.info("batch purged", batch_id=batch_id)
        return BatchPurged(batch_id=batch_id)
    cancelled = await services.store.batches.cancel(batch_id)
    _log.info("batch cancelled", batch_id=batch_id, cancelled=cancelled)
    return BatchCancelled(batch_id=batch_id, cancelled=cancelled)
