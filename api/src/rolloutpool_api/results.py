"""Pages of results. They are joined from the JSON that the store holds, without parsing it.

1. A cursor is `<epoch>.<stream id>`. The epoch counts how often Redis lost data; the stream id is the place of a result
   in the order in which rollouts ended. The store answers a cursor of an older epoch from the start.
2. A long-poll (`wait`) returns at the first result, but lingers 20 ms for others, since a request costs more than
   a result.
3. A page is complete when all rollouts have ended and it reaches the last of them. Otherwise `next_cursor` goes on.

With `view=summary` the items carry rows of the table, and no result is read.

A page equals `ResultPage` (or one `ResultItem` per line) byte for byte as the models would write it.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import orjson

from rolloutpool_api.errors import BadCursor
from rolloutpool_api.services import ApiServices
from rolloutpool_common.protocol.rows import ENDED_FIELDS
from rolloutpool_common.store.records import EndedRollout

View = Literal["full", "summary"]
"""Whether a reader gets results, or their rows only."""
START = "0"
CHUNK = 100
"""Results per read: 100 results of 18 kB come in one round trip, and do not hold up the event loop."""
LINGER = 0.02
"""Seconds that a long-poll waits for further results after the first."""
PAGE_BYTES = 32 * 1024 * 1024
"""A page ends here even if it has fewer results than asked for; the next begins where it ended."""

_CURSOR = re.compile(r"0|[0-9]{1,15}\.[0-9]{1,15}-[0-9]{1,15}")


def check_cursor(cursor: str) -> str:
    """Returns the cursor unchanged if it has the form of one."""
    if not _CURSOR.fullmatch(cursor):
        raise BadCursor(f"cursor {cursor[:64]!r}: {BadCursor.__doc__}")
    return cursor


@dataclass(frozen=True)
class Page:
    """Some results of one batch, in the order in which their rollouts ended."""

    items: list[bytes]
    """Each the JSON of a `ResultItem`."""
    next_cursor: str
    complete: bool

    def full(self, limit: int) -> bool:
        """Tells whether nothing more fits into this page."""
        return len(self.items) >= limit or sum(map(len, self.items)) >= PAGE_BYTES

    def json(self) -> bytes:
        """Writes the page as one `ResultPage`, in JSON."""
        complete = b"true" if self.complete else b"false"
        tail = b'],"next_cursor":"%b","complete":%b}' % (self.next_cursor.encode(), complete)
        return b'{"items":[' + b",".join(self.items) + tail

    def ndjson(self) -> bytes:
        """Writes one `ResultItem` a line, each with its own cursor."""
        return b"".join(item + b"\n" for item in self.items)


async def read_page(
    services: ApiServices, batch_id: str, cursor: str, *, limit: int, wait_s: float, view: View = "full"
) -> Page:
    """Reads the results after a cursor."""
    end = time.monotonic() + wait_s
    # Watched before the first look, so that no result comes unnoticed between look and wait.
    async with services.store.signals.watch(batch_id) as watch:
        while True:
            page = await _read(services, batch_id, Page([], cursor, False), limit, view)
            left = end - time.monotonic()
            # A page read with `wait` 0 does not linger, nor does one whose caller's time is nearly over.
            if page.items and left > LINGER and not page.complete and not page.full(limit):
                await services.pause(LINGER)
                return await _read(services, batch_id, page, limit, view)
            if page.items or page.complete or left <= 0:
                return page
            await services.wait(watch, left)


async def _read(services: ApiServices, batch_id: str, page: Page, limit: int, view: View) -> Page:
    """Extends the page by what follows it."""
    items, cursor = list(page.items), page.next_cursor
    while True:
        chunk, had = min(CHUNK, limit - len(items)), len(items)
        if view == "full":
            piece = await services.store.batches.results(batch_id, cursor, chunk)
            items += [b'{"cursor":"%b","result":%b}' % (at.encode(), data) for at, data in piece.items]
            after, complete = piece.next_cursor, piece.complete
        else:
            ended = await services.store.batches.ended(batch_id, cursor, chunk)
            rows = await read_summaries(services, batch_id, ended.items)
            items += [
                orjson.dumps({"cursor": item.cursor, "summary": row})
                for item, row in zip(ended.items, rows, strict=True)
            ]
            after, complete = ended.next_cursor, ended.complete
        cursor = after
        page = Page(items, cursor, complete)
        # A piece that is not full reached the last result that there was.
        if page.complete or page.full(limit) or len(items) < had + chunk:
            return page


async def read_summaries(services: ApiServices, batch_id: str, ended: Sequence[EndedRollout]) -> list[dict[str, Any]]:
    """Reads the rows of at most `CHUNK` rollouts that have ended."""
    indexes = [item.index for item in ended]
    rows, groups = await services.store.rows.some(batch_id, indexes)
    return [
        {
            "index": index,
            "uid": f"{batch_id}-{index}",
            "group": group,
            # A row that an older version wrote may be shorter.
            **dict(zip_longest(ENDED_FIELDS, row[: len(ENDED_FIELDS)])),
        }
        for index, row, group in zip(indexes, rows, groups, strict=True)
    ]
