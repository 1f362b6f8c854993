"""Runs: the version of the newest weights, and pauses around a weight update. Each key steers its own runs."""

from collections.abc import Awaitable
from typing import Annotated

import structlog
from fastapi import APIRouter, Path

from rolloutpool_api.access import Reader, Submitter
from rolloutpool_api.errors import Conflict, QueueFull, ResourceUnknown
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.capabilities.runs.steering import Runs, RunUnknown, TooManyRuns, VersionLower
from rolloutpool_common.capabilities.runs.wire import LONGEST_RUN, PolicyVersionRequest, RunState

router = APIRouter(prefix="/v1/runs", tags=["runs"])

_log = structlog.stdlib.get_logger(__name__)

RunName = Annotated[
    str, Path(min_length=1, max_length=LONGEST_RUN, description="As the batches have it in `run`", examples=["job7"])
]


# A name may have slashes, so these paths take all of it. The longer ones come first, or they would be taken for names.
@router.put("/{run:path}/policy_version", summary="Announce the newest weights", responses=errors(409, 422, 429))
async def announce(run: RunName, body: PolicyVersionRequest, services: ServicesDep, caller: Submitter) -> RunState:
    """Call it when the engines, or the callback, sample with them. The run need not have a batch yet.

    A version below the one before is a conflict, unless `rollback` is true.
    """
    runs = Runs(services.store)
    state = await _answered(runs.announce(caller.name, run, body.policy_version, rollback=body.rollback))
    _log.info("policy version announced", run=run, policy_version=state.policy_version)
    return state


@router.post("/{run:path}/pause", summary="Send no further model call", responses=errors(422, 429))
async def pause(run: RunName, services: ServicesDep, caller: Submitter) -> RunState:
    """Calls in flight go on; the rollouts wait. Paused again, the run may stay so for the whole limit again."""
    limit_s = services.settings.paused_seconds
    state = await _answered(Runs(services.store).pause(caller.name, run, limit_s=limit_s))
    _log.info("run paused", run=run)
    return state


@router.post("/{run:path}/resume", summary="Go on after a pause", responses=errors(404, 422))
async def resume(run: RunName, services: ServicesDep, caller: Submitter) -> RunState:
    """Changes nothing where the run is not paused."""
    state = await _answered(Runs(services.store).resume(caller.name, run))
    services.publish_soon()
    _log.info("run resumed", run=run)
    return state


@router.get("/{run:path}", summary="State of a run: version, pause", responses=errors(404, 422))
async def run_state(run: RunName, services: ServicesDep, caller: Reader) -> RunState:
    """A run is known for a week after its last batch or change."""
    return await _answered(Runs(services.store).read(caller.name, run))


async def _answered(change: Awaitable[RunState]) -> RunState:
    try:
        return await change
    except RunUnknown as unknown:
        raise ResourceUnknown(unknown.message) from None
    except VersionLower as lower:
        raise Conflict(lower.message) from None
    except TooManyRuns as full:
        raise QueueFull(full.message) from None
