"""The calls that only the Osmosis wire v3.3 has."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Response

from rolloutpool_api.access import Reader, Submitter
from rolloutpool_api.body import StrictRoute
from rolloutpool_api.capabilities.osmosis import calls
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.capabilities.osmosis.request import LEASE_HEADER, OsmosisCancel
from rolloutpool_common.capabilities.osmosis.response import OsmosisCancelled, OsmosisResult
from rolloutpool_common.protocol.errors import V1ErrorBody

router = APIRouter(route_class=StrictRoute, strict_content_type=False, tags=["osmosis v3.3"])


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
    return await calls.poll(services, rollout_id, lease, caller.name)


@router.post("/rollout/cancel", summary="Cancel rollouts of the Osmosis wire by id or prefix, or all of them")
async def cancel_rollouts(request: OsmosisCancel, services: ServicesDep, caller: Submitter) -> OsmosisCancelled:
    """Reaches rollouts of this API key alone. One that has ended keeps its outcome."""
    return await calls.cancel(services, request, caller.name)
