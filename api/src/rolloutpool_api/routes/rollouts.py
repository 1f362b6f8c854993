"""Single rollouts: `POST /rollout` of protocol v1, and each rollout under `/v1/rollouts`.

What else comes to `POST /rollout` is of another wire (`by_wire`).

A rollout is found by its uid, or by the rollout_id that its caller gave it. If several have one rollout_id, the newest
is meant.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError

from rolloutpool_api.access import Anybody, Principal, Reader, Submitter
from rolloutpool_api.body import StrictRoute
from rolloutpool_api.checks import Catalog
from rolloutpool_api.composition import wires
from rolloutpool_api.errors import ResourceUnknown
from rolloutpool_api.routes.by_wire import RouteByWire
from rolloutpool_api.routes.openapi_errors import V1_UNAVAILABLE, errors
from rolloutpool_api.services import ApiServices, ServicesDep
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.checks import check_rollout_id
from rolloutpool_common.protocol.errors import V1ErrorBody
from rolloutpool_common.protocol.history import RolloutHistory
from rolloutpool_common.protocol.ids import has_form_of_our_ids
from rolloutpool_common.protocol.rollouts import RolloutCancelled, RolloutView
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.protocol.v1.response import RolloutResponse
from rolloutpool_common.security.api_keys import GUEST
from rolloutpool_common.store import keys

# Beside `router`, because each rollout of v1 goes through it, and a router that stands first is searched first.
# v1's clients were written for an older FastAPI, which read a body without Content-Type as JSON.
posted = APIRouter(route_class=RouteByWire, strict_content_type=False)
router = APIRouter(route_class=StrictRoute, strict_content_type=False)


RolloutName = Annotated[
    str, Path(description="uid, or the caller's own rollout_id", examples=["job7-step12-idx3-9f2c"])
]


@posted.post(
    "/rollout",
    tags=["protocol v1"],
    summary="Run one rollout and wait for it",
    response_model=RolloutResponse,
    responses={
        **{status: said for wire in wires() for status, said in wire.answers.items()},
        400: {"model": V1ErrorBody, "description": "The body can't be decoded"},
        409: {"model": V1ErrorBody, "description": "The rollout_id is in use with another body"},
        413: {"model": V1ErrorBody, "description": "The body is too large"},
        **V1_UNAVAILABLE,
    },
)
async def run_rollout(request: RolloutRequest, services: ServicesDep, caller: Submitter, http: Request) -> Response:
    """Answers 200 for every outcome of a valid request; `status` tells success from failure.

    The same `rollout_id` posted again with the same body joins the running rollout and gets the same result, until
    10 minutes after its end. A caller that went away finds the result under `/v1/rollouts/{rollout_id}`.
    """
    catalog = None
    if services.restrictions.asks_workers:
        catalog = Catalog.of(await services.store.workers.known())
    if faults := list(services.restrictions.check_v1(request, catalog)):
        raise RequestValidationError([_fault(text, "body", field) for field, text in faults])
    try:
        # `synchronous.run`, or its first half in the process that reads large bodies.
        response: Response = await http.app.state.run_v1(services, request, caller.name)
    except TypeError:
        fault = _fault("holds an integer beyond 64 bits; send it as a string", "body")
        raise RequestValidationError([fault]) from None
    return response


# Before the next ones, which answer any path below a rollout.
@router.get(
    "/v1/rollouts/{uid}/history",
    tags=["rollouts"],
    summary="Claims and requeues of one rollout",
    responses=errors(404),
)
async def rollout_history(
    uid: Annotated[str, Path(description="Uid of a rollout")], services: ServicesDep, caller: Reader
) -> RolloutHistory:
    """Who had it and when, and why it was queued again. Also while it runs."""
    found = await services.store.histories.read(uid, caller.sees)
    if found is None:
        raise unknown_rollout(uid)
    await services.note_read(uid.rpartition("-")[0], caller.name)
    return found


# `:path`, because v1 allows any id, and a slash arrives here decoded.
@router.get(
    "/v1/rollouts/{rollout_id:path}",
    tags=["rollouts"],
    summary="State of one rollout, and its result once it has ended",
    responses=errors(404, 422),
)
async def view_rollout(rollout_id: RolloutName, services: ServicesDep, caller: Reader) -> RolloutView:
    """`result` is the whole record: samples with ids and masks, transcript, failure, timings."""
    view = await services.store.rollouts.view(await find_uid(services, rollout_id, caller), caller.sees)
    if view is None:
        raise unknown_rollout(rollout_id)
    await services.note_read(view.batch_id, caller.name)
    return view


@router.delete(
    "/v1/rollouts/{rollout_id:path}",
    tags=["rollouts"],
    summary="Cancel one rollout",
    responses={
        202: {
            "model": RolloutCancelled,
            "description": "Not submitted yet; it is cancelled when it comes",
        },
        **errors(404, 422),
    },
)
async def cancel_rollout(
    rollout_id: RolloutName, services: ServicesDep, caller: Submitter, response: Response
) -> RolloutCancelled:
    """A rollout that had ended keeps its outcome, but its result is no longer pushed. Asking twice is harmless.

    A cancel may overtake its submit, so a rollout_id that is not known yet is remembered for 10 minutes. The first
    rollout that is submitted under it ends `cancelled` at once and never runs.
    """
    try:
        uid = await find_uid(services, rollout_id, caller)
    except ResourceUnknown:
        if not _may_come(rollout_id):
            raise
        submitted = await services.store.rollouts.precancel(rollout_id, caller.name)
        if submitted is None:
            response.status_code = 202
            return RolloutCancelled(uid=None, status=RolloutStatus.CANCELLED)
        uid = submitted
    status = await services.store.rollouts.cancel(uid)
    if status is None:
        raise unknown_rollout(rollout_id)
    return RolloutCancelled(uid=uid, status=status)


async def find_uid(services: ApiServices, name: str, caller: Principal) -> str:
    """Finds a rollout's uid by its name, or raises `ResourceUnknown`. A uid wins over an equal rollout_id."""
    batch_id, _, _ = name.rpartition("-")
    if batch_id and await services.store.batches.total(batch_id, caller.sees) is not None:
        return name
    # An admin sees everything, but a name means one rollout: their own, else one that came without a key.
    for owner in (caller.name,) if caller.sees else (caller.name, GUEST):
        uid = await services.store.rollouts.find(name, owner)
        if uid is not None:
            return uid
    raise unknown_rollout(name)


async def known_rollout(
    uid: Annotated[str, Path(description="Uid of a rollout")], services: ServicesDep, caller: Anybody
) -> tuple[str, int]:
    """Returns batch and index of a rollout that the caller may see, or raises `ResourceUnknown`; takes uids only."""
    split = keys.split_uid(uid)
    total = None if split is None else await services.store.batches.total(split[0], caller.sees, reader=caller.name)
    if split is None or total is None or split[1] >= total or keys.uid_of(*split) != uid:
        raise unknown_rollout(uid)
    return split


KnownRollout = Annotated[tuple[str, int], Depends(known_rollout)]


def _may_come(name: str) -> bool:
    """Tells whether a caller could still submit a rollout of this name; uids are given by the pool only."""
    try:
        return not has_form_of_our_ids(check_rollout_id(name))
    except ValueError:
        return False


def _fault(text: str, *at: str) -> dict[str, Any]:
    """Makes a fault in pydantic's shape, which protocol v1's 422 has."""
    return {"type": "value_error", "loc": at, "msg": f"Value error, {text}", "input": {}}


def unknown_rollout(name: str) -> ResourceUnknown:
    """Makes the answer for a rollout that this caller does not have."""
    return ResourceUnknown(f"rollout {name[:300]!r} is unknown, or its data was deleted")
