"""The events of a batch (SSE): `result` per ended rollout, `progress` at most twice a second, `complete` at the end.

1. The stream reads what ended after a cursor, in chunks, and sends one `result` per item. Its id is the item's cursor.
   It names the rollout; with `view=summary` it has the rollout's row too. No result is read.
2. When nothing is left to read, it waits: for a signal that a rollout has ended, or until `progress` is due.
3. After the last result it sends `progress` and `complete`, and ends.
4. It ends without `complete` when this process stops, Redis does not answer, or its reader's key was revoked. The
   reader then reconnects with `Last-Event-ID` and goes on after the last result: it misses nothing and gets nothing
   twice.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import structlog
from fastapi.sse import ServerSentEvent

from rolloutpool_api.access import Principal
from rolloutpool_api.errors import ShuttingDown
from rolloutpool_api.results import CHUNK, View, read_summaries
from rolloutpool_api.services import ApiServices
from rolloutpool_common.process.metrics import EVENT_STREAMS
from rolloutpool_common.protocol.batch import BatchStatus
from rolloutpool_common.store import StoreError, keys
from rolloutpool_common.store.records import EndedRollout

_log = structlog.stdlib.get_logger(__name__)

PROGRESS_SECONDS = 0.5
IDLE_SECONDS = 30.0
"""How often to look although nothing happens; the batch may have been deleted."""
RECONNECT_MS = 2000
"""Sent with each status: how long a browser waits before it connects again."""


async def stream(
    services: ApiServices, batch_id: str, cursor: str, caller: Principal, view: View
) -> AsyncIterator[ServerSentEvent]:
    """Yields all events of a batch after a cursor."""
    try:
        with EVENT_STREAMS:
            async for event in _events(services, batch_id, cursor, caller, view):
                yield event
    except ShuttingDown:
        return
    except StoreError as error:
        _log.warning("event stream broken off", batch_id=batch_id, error=str(error))


async def _events(
    services: ApiServices, batch_id: str, cursor: str, caller: Principal, view: View
) -> AsyncIterator[ServerSentEvent]:
    # `told` is when the last `progress` was sent, `dirty` whether the counts may have changed since. A new reader gets
    # its first `progress` at once.
    told, dirty = -PROGRESS_SECONDS, True
    async with services.store.signals.watch(batch_id) as watch:
        while services.keys.holds(caller.key):
            piece = await services.store.batches.ended(batch_id, cursor, CHUNK)
            rows = (
                [None] * len(piece.items) if view == "full" else await read_summaries(services, batch_id, piece.items)
            )
            for item, row in zip(piece.items, rows, strict=True):
                yield _result(batch_id, item, row)
            cursor, dirty = piece.next_cursor, dirty or bool(piece.items)
            due = told + PROGRESS_SECONDS - time.monotonic()
            if piece.complete or (dirty and due <= 0):
                status = await services.store.batches.status(batch_id, caller.sees)
                # The batch has been deleted, so nothing follows.
                if status is None:
                    return
                yield _status("progress", status)
                if piece.complete:
                    yield _status("complete", status)
                    return
                told, dirty, due = time.monotonic(), False, PROGRESS_SECONDS
            # After a full chunk there is probably more to read, so nothing is waited for.
            if len(piece.items) < CHUNK and not await services.wait(watch, due if dirty else IDLE_SECONDS):
                # No rollout has ended, but some may have been claimed, which the counts show.
                dirty = True


def _result(batch_id: str, ended: EndedRollout, row: dict[str, Any] | None) -> ServerSentEvent:
    about = {"uid": keys.uid_of(batch_id, ended.index), "index": ended.index, "status": ended.status}
    summary = {} if row is None else {"summary": row}
    data = orjson.dumps({**about, "cursor": ended.cursor, **summary}).decode()
    return ServerSentEvent(event="result", id=ended.cursor, raw_data=data)


def _status(event: str, status: BatchStatus) -> ServerSentEvent:
    return ServerSentEvent(event=event, raw_data=status.model_dump_json(), retry=RECONNECT_MS)
