"""The list of batches. Everybody sees their own; `admin` sees all, or those of one owner."""

from typing import Annotated

from fastapi import APIRouter, Query

from rolloutpool_api.access import Reader
from rolloutpool_api.errors import BadCursor, Rejected
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.batch import BatchState
from rolloutpool_common.protocol.batch_list import BatchList
from rolloutpool_common.security.api_keys import KeyScope
from rolloutpool_common.store.batch_list import BatchFilter

router = APIRouter(prefix="/v1/batches", tags=["batches"])

MAX_LABELS = 8
"""Labels that a filter may name."""


@router.get("", summary="Your batches, newest first", responses=errors(400, 422))
async def list_batches(
    services: ServicesDep,
    caller: Reader,
    state: Annotated[BatchState | None, Query(description="Only those in this state")] = None,
    run: Annotated[str | None, Query(max_length=128, description="Only those of this run")] = None,
    label: Annotated[
        list[str] | None, Query(max_length=MAX_LABELS, description="`name=value`; only those that have all of these")
    ] = None,
    v1: Annotated[bool, Query(description="Protocol v1's rollouts, each a batch of one, instead of batches")] = False,
    owner: Annotated[str | None, Query(max_length=128, description="Whose; others than your own take `admin`")] = None,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> BatchList:
    """Go on with `next_cursor` until it is null. A page may be shorter than `limit`, where a filter lets few pass.

    `admin` sees everybody's batches; with `run` those of their own key, or of `owner`.
    """
    if owner is not None and owner != caller.name:
        caller.must(KeyScope.ADMIN)
    if cursor is not None and not services.store.batch_lists.is_cursor(cursor):
        raise BadCursor(f"cursor {cursor[:64]!r}: pass `next_cursor` of the page before, or none for the newest")
    whose = owner or caller.sees
    if run is not None and whose is None:
        whose = caller.name
    wanted = BatchFilter(state, run, _labels(label or []), v1)
    return await services.store.batch_lists.read(whose, cursor=cursor, limit=limit, wanted=wanted)


def _labels(texts: list[str]) -> dict[str, str]:
    faults = FaultList()
    for index, text in enumerate(texts):
        if "=" not in text:
            faults.add(path("query", "label", index), "must be `name=value`")
    if faults.total:
        raise Rejected(faults.listed, faults.total)
    return dict(text.split("=", 1) for text in texts)
