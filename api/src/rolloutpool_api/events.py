"""The events of a batch: `result` per ended rollout, `progress` at most twice a second, `complete` at the end.

Each `result` has its cursor as id, so that a reader that reconnects with `Last-Event-ID` misses nothing and gets
nothing twice. The stream ends after `complete`, and without it when this process stops or Redis is away: reconnect.
"""

import time
from collections.abc import AsyncIterator

import orjson
import structlog
from fastapi.sse import ServerSentEvent

from rolloutpool_api.errors import ShuttingDown
from rolloutpool_api.services import ApiServices
from rolloutpool_common.protocol.batch import BatchStatus
from rolloutpool_common.store import StoreError

__all__ = ["PROGRESS_SECONDS", "stream"]

_log = structlog.stdlib.get_logger(__name__)

PROGRESS_SECONDS = 0.5
IDLE_SECONDS = 30.0
"""A look now and then even if nothing happens: the batch may be gone."""
CHUNK = 100
RECONNECT_MS = 2000


async def stream(services: ApiServices, batch_id: str, cursor: str, sees: str | None) -> AsyncIterator[ServerSentEvent]:
    """All events after `cursor` of a batch that is this caller's; `sees` None: anybody's."""
    try:
        async for event in _events(services, batch_id, cursor, sees):
            yield event
    except ShuttingDown:
        return
    except StoreError as error:
        _log.warning("event stream broken off", batch_id=batch_id, error=str(error))


async def _events(
    services: ApiServices, batch_id: str, cursor: str, sees: str | None
) -> AsyncIterator[ServerSentEvent]:
    told, dirty = -PROGRESS_SECONDS, True
    async with services.store.signals.watch(batch_id) as watch:
        while True:
            piece = await services.store.batches.results(batch_id, cursor, CHUNK)
            for at, data in piece.items:
                yield _result(at, data)
            cursor, dirty = piece.next_cursor, dirty or bool(piece.items)
            due = told + PROGRESS_SECONDS - time.monotonic()
            if piece.complete or (dirty and due <= 0):
                status = await services.store.batches.status(batch_id, sees)
                if status is None:
                    return
                yield _status("progress", status)
                if piece.complete:
                    yield _status("complete", status)
                    return
                told, dirty, due = time.monotonic(), False, PROGRESS_SECONDS
            if len(piece.items) < CHUNK and not await services.wait(watch, due if dirty else IDLE_SECONDS):
                # Rollouts that were claimed since show in the counts, though none has ended.
                dirty = True


def _result(cursor: str, data: bytes) -> ServerSentEvent:
    result = orjson.loads(data)
    about = {key: result[key] for key in ("uid", "index", "status")}
    return ServerSentEvent(event="result", id=cursor, raw_data=orjson.dumps({**about, "cursor": cursor}).decode())


def _status(event: str, status: BatchStatus) -> ServerSentEvent:
    return ServerSentEvent(event=event, raw_data=status.model_dump_json(), retry=RECONNECT_MS)
