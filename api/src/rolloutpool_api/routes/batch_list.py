"""The list of batches. Everybody sees their own; `admin` sees all, or those of one owner."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

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


class BatchListQuery(BaseModel):
    """Says which batches a page lists."""

    state: BatchState | None = Field(None, description="Only those in this state")
    run: str | None = Field(None, max_length=128, description="Only those of this run")
    label: list[str] | None = Field(
        None, max_length=MAX_LABELS, description="`name=value`; only those that have all of these"
    )
    v1: bool = Field(False, description="Protocol v1's rollouts, each a batch of one, instead of batches")
    owner: str | None = Field(
        None, min_length=1, max_length=128, description="Whose; others than your own take `admin`"
    )
    cursor: str | None = Field(None, description="`next_cursor` of the page before")
    limit: int = Field(100, ge=1, le=1000)


@router.get("", summary="Your batches, newest first", responses=errors(400, 422))
async def list_batches(services: ServicesDep, caller: Reader, asked: Annotated[BatchListQuery, Query()]) -> BatchList:
    """Go on with `next_cursor` until it is null. A page may be shorter than `limit`, where a filter lets few pass.

    `admin` sees everybody's batches; with `run` those of their own key, or of `owner`.
    """
    if asked.owner is not None and asked.owner != caller.name:
        caller.must(KeyScope.ADMIN)
    cursor = asked.cursor
    if cursor is not None and not services.store.batch_lists.is_cursor(cursor):
        raise BadCursor(f"cursor {cursor[:64]!r}: pass `next_cursor` of the page before, or none for the newest")
    whose = asked.owner or caller.sees
    if asked.run is not None and whose is None:
        whose = caller.name
    wanted = BatchFilter(asked.state, asked.run, _labels(asked.label or []), asked.v1)
    return await services.store.batch_lists.read(whose, cursor=cursor, limit=asked.limit, wanted=wanted)


def _labels(texts: list[str]) -> dict[str, str]:
    faults = FaultList()
    for index, text in enumerate(texts):
        if "=" not in text:
            faults.add(path("query", "label", index), "must be `name=value`")
    if faults.total:
        raise Rejected(faults.listed, faults.total)
    return dict(text.split("=", 1) for text in texts)
