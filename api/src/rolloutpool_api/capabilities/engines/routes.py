"""Says what an engine has said of a rollout's ids besides log-probabilities, for trainers that asked for it."""

import asyncio

from fastapi import APIRouter, Response

from rolloutpool_api.access import Reader
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.routes.rollouts import KnownRollout
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.capabilities.engines.attachments import RolloutAttachments
from rolloutpool_common.capabilities.engines.kept import read_pieces, read_record
from rolloutpool_common.store import keys

router = APIRouter()


@router.get(
    "/v1/rollouts/{uid}/attachments",
    tags=["rollouts"],
    summary="Routed experts and sampling masks of one rollout",
    response_model=RolloutAttachments,
    responses=errors(404),
)
async def rollout_attachments(place: KnownRollout, services: ServicesDep, _: Reader) -> Response:
    """Of batches that asked for them (`attach`), once their conversation has ended; `pieces` is empty otherwise.

    Each piece names the turn and the ids to which it belongs, by their offset in prompt and response of a sample.
    """
    uid = keys.uid_of(*place)
    record = await read_record(services.store, uid)
    # Megabytes, so not on the event loop.
    return Response(await asyncio.to_thread(_answer, uid, record), media_type="application/json")


def _answer(uid: str, record: bytes | None) -> str:
    pieces = [] if record is None else read_pieces(record)
    return RolloutAttachments(uid=uid, pieces=pieces).model_dump_json()
