"""Sessions of harnesses, for their owner: where a program finds its model, and the end of its session."""

import structlog
from fastapi import APIRouter

from rolloutpool_api.access import Principal, Submitter
from rolloutpool_api.errors import Conflict, ResourceUnknown
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.routes.rollouts import RolloutName, find_uid
from rolloutpool_api.services import ApiServices, ServicesDep
from rolloutpool_common.capabilities.harness.sessions import OpenSession, Sessions
from rolloutpool_common.capabilities.harness.wire import HarnessSession, SessionEnd

router = APIRouter(tags=["rollouts"])

_log = structlog.stdlib.get_logger(__name__)


@router.get(
    "/v1/sessions/{rollout_id:path}",
    summary="Where the program that leads a rollout finds its model",
    responses=errors(404),
)
async def session(rollout_id: RolloutName, services: ServicesDep, caller: Submitter) -> HarnessSession:
    """The key is good for this rollout alone, until its session ends."""
    return await _state(services, await _opened(services, rollout_id, caller))


@router.post(
    "/v1/sessions/{rollout_id:path}/end",
    summary="End a session, with what the rollout is worth",
    responses=errors(404, 409, 422),
)
async def end_session(
    rollout_id: RolloutName, how: SessionEnd, services: ServicesDep, caller: Submitter
) -> HarnessSession:
    """The session takes no further calls, and its result is made. The same end may be sent again."""
    found = await _opened(services, rollout_id, caller)
    answer = await Sessions(services.store).end(found.uid, how)
    if answer == "gone":
        raise ResourceUnknown(f"rollout {rollout_id!r} is unknown, or its data was deleted")
    if answer != "ok":
        raise Conflict(f"the session of rollout {rollout_id!r} has ended otherwise already")
    _log.info("session ended", rollout_uid=found.uid)
    return await _state(services, found)


async def _opened(services: ApiServices, rollout_id: str, caller: Principal) -> OpenSession:
    uid = await find_uid(services, rollout_id, caller)
    view = await services.store.rollouts.view(uid, caller.sees)
    found = None if view is None else await Sessions(services.store).open(uid)
    if found is None:
        raise ResourceUnknown(f"rollout {rollout_id!r} has no harness, is unknown, or its data was deleted")
    return found


async def _state(services: ApiServices, found: OpenSession) -> HarnessSession:
    sessions = Sessions(services.store)
    state = await sessions.state(found.uid)
    return HarnessSession(
        uid=found.uid,
        url=f"{services.settings.door_url.rstrip('/')}/s/{found.uid}",
        key=await sessions.key(found),
        calls=state.calls,
        waiting=state.waiting,
        over=state.end is not None,
    )
