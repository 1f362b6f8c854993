"""The table of a batch: its rollouts in columns, also those that have not ended."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from rolloutpool_api.access import Reader
from rolloutpool_api.capabilities.tables.choice import (
    Column,
    Condition,
    choose,
    columns_of,
    first_index,
    index_cursor,
    is_field,
)
from rolloutpool_api.composition import COLUMNS, Figures
from rolloutpool_api.errors import Rejected, ResourceUnknown
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.routes.batches import BatchId
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS
from rolloutpool_common.protocol.rows import ROW_FIELDS, RowPage
from rolloutpool_common.store.rows import StoredTable

router = APIRouter(prefix="/v1/batches", tags=["batches"])

MAX_CONDITIONS = 8
IN_THREAD = 1000
"""Rows from which a page is made in a thread, so that the event loop stays free."""


class RowsQuery(BaseModel):
    """Says which rows of the table a page has, and which of their fields."""

    fields: str | None = Field(None, max_length=4000, description="Fields, with commas between; all without")
    where: list[str] | None = Field(
        None, max_length=MAX_CONDITIONS, description="`status=failed`, `turns>3`, `drift~edited`; all must be true"
    )
    sort: str = Field("index", max_length=100, description="A field; `-` in front for the largest first")
    cursor: str | None = Field(None, max_length=2000, description="`next_cursor` of the page before")
    limit: int = Field(1000, ge=1, le=MAX_ROLLOUTS)


@router.get(
    "/{batch_id}/rollouts",
    summary="The rollouts of a batch as a table: filtered, sorted, in columns",
    response_model=RowPage,
    responses=errors(400, 404, 422),
)
async def batch_rows(
    batch_id: BatchId, services: ServicesDep, _: Reader, asked: Annotated[RowsQuery, Query()]
) -> Response:
    """No tokens and no texts: those are in the results. A rollout that has not ended has only some of the fields."""
    figures = {
        f"{word}.{name}": values
        for word, read in COLUMNS.items()
        for name, values in (await read(services.store, batch_id)).items()
    }
    wanted, conditions = _parse(asked, figures)
    # Only the rows of the page are read where that is known before: not if all must be filtered or sorted.
    plain = asked.sort == "index" and not conditions
    start = first_index(asked.cursor) if plain else 0
    table = await services.store.rows.read(batch_id, start, start + asked.limit if plain else None)
    if table is None:
        raise ResourceUnknown(f"batch {batch_id!r} is unknown, or its data was deleted")

    def page() -> bytes:
        if plain:
            return _plain_page(batch_id, table, figures, wanted)
        return _page(batch_id, table, figures, wanted, conditions, asked)

    body = await asyncio.to_thread(page) if len(table.indexes) > IN_THREAD else page()
    return Response(body, media_type="application/json")


def _parse(asked: RowsQuery, figures: Figures) -> tuple[list[str], list[Condition]]:
    fields, sort, faults = asked.fields, asked.sort, FaultList()
    every = [*ROW_FIELDS, *figures]
    wanted = every if fields is None else list(dict.fromkeys(name for name in fields.split(",") if name))
    known = f"there are {', '.join(every)[:3000]}"
    for name in wanted:
        if not is_field(name, COLUMNS):
            faults.add(path("query", "fields"), f"{name[:100]!r} is no field; {known}")
    conditions = []
    for index, text in enumerate(asked.where or []):
        try:
            condition = Condition.parse(text)
        except ValueError as error:
            faults.add(path("query", "where", index), str(error))
            continue
        if not is_field(condition.field, COLUMNS):
            faults.add(path("query", "where", index), f"{condition.field[:100]!r} is no field; {known}")
        conditions.append(condition)
    if not is_field(sort.removeprefix("-"), COLUMNS):
        faults.add(path("query", "sort"), f"{sort[:100]!r} is no field; {known}")
    if faults.total:
        raise Rejected(faults.listed, faults.total)
    return wanted, conditions


def _plain_page(batch_id: str, table: StoredTable, figures: Figures, wanted: Sequence[str]) -> bytes:
    more = table.indexes and table.indexes[-1] + 1 < table.total
    columns = columns_of(table, batch_id, figures, wanted)
    return _write(batch_id, table, columns, table.total, index_cursor(table.indexes[-1]) if more else None)


def _page(
    batch_id: str,
    table: StoredTable,
    figures: Figures,
    wanted: Sequence[str],
    conditions: Sequence[Condition],
    asked: RowsQuery,
) -> bytes:
    needed = dict.fromkeys(["index", asked.sort.removeprefix("-"), *(c.field for c in conditions), *wanted])
    columns = columns_of(table, batch_id, figures, list(needed))
    choice = choose(columns, conditions, asked.sort, asked.cursor, asked.limit)
    chosen = {name: [columns[name][place] for place in choice.places] for name in wanted}
    return _write(batch_id, table, chosen, choice.matched, choice.next_cursor)


def _write(
    batch_id: str, table: StoredTable, columns: Mapping[str, Column], matched: int, next_cursor: str | None
) -> bytes:
    return orjson.dumps(
        {
            "batch_id": batch_id,
            "total": table.total,
            "matched": matched,
            "created_ms": table.created_ms,
            "now_ms": table.now_ms,
            "columns": {name: list(column) for name, column in columns.items()},
            "next_cursor": next_cursor,
        }
    )
