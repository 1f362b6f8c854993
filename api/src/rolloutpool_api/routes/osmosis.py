"""The Osmosis wire v3.3: `POST /rollout` where the body's fields say so, and the calls that only this wire has."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from rolloutpool_api import osmosis
from rolloutpool_api.access import Reader, Submitter
from rolloutpool_api.body import StrictRequest, StrictRoute, check_kind, off_loop, parse
from rolloutpool_api.errors import UnsupportedBody
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.errors import V1ErrorBody
from rolloutpool_common.protocol.osmosis.request import LEASE_HEADER, OsmosisCancel, Wire, names_wire, wire_of
from rolloutpool_common.protocol.osmosis.response import OsmosisCancelled, OsmosisResult

router = APIRouter(route_class=StrictRoute, strict_content_type=False, tags=["osmosis v3.3"])


class RouteByWire(StrictRoute):
    """Protocol v1's `POST /rollout`, which gives the bodies of other wires to `osmosis.accept`.

    A body is parsed a second time only where it may be of another wire. Where anything is wrong with it, it is v1's, so
    that v1's errors stay as they are.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns a handler that looks at the body before it is validated."""
        v1 = APIRoute.get_route_handler(self)

        async def by_wire(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            wire, document = await _look(strict)
            if wire is Wire.V1:
                return await v1(strict)
            return await osmosis.accept(request.app.state.services, wire, document, request.state.caller)

        return by_wire


async def _look(request: Request) -> tuple[Wire, Any]:
    try:
        check_kind(request.headers)
        body = await request.body()
        if not names_wire(body):
            return Wire.V1, None
        document = await off_loop(len(body), lambda: parse(body))
    except (UnsupportedBody, ClientDisconnect, ValueError):
        return Wire.V1, None
    return wire_of(document), document


RolloutName = Annotated[str, Path(description="the rollout_id", examples=["run7-row3-0"])]
Lease = Annotated[str, Header(alias=LEASE_HEADER, min_length=1, description="`polling_lease_token` of the submit")]


@router.get(
    "/rollout/{rollout_id}/result",
    summary="Wait for a rollout's next status, and renew its lease",
    response_model=OsmosisResult,
    responses={
        403: {"model": V1ErrorBody, "description": "The lease is another one"},
        404: {"model": V1ErrorBody, "description": "Unknown, or its end is more than 15 minutes ago"},
    },
)
async def poll_result(rollout_id: RolloutName, lease: Lease, services: ServicesDep, caller: Reader) -> Response:
    """Answers at the next change of the status, or after 30 s.

    Without a poll for 120 s the rollout is ended.
    """
    return await osmosis.poll(services, rollout_id, lease, caller.name)


@router.post("/rollout/cancel", summary="Cancel rollouts of the Osmosis wire by id or prefix, or all of them")
async def cancel_rollouts(request: OsmosisCancel, services: ServicesDep, caller: Submitter) -> OsmosisCancelled:
    """Reaches rollouts of this API key alone. One that has ended keeps its outcome."""
    return await osmosis.cancel(services, request, caller.name)
