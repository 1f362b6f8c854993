"""Metrics for Prometheus. The route answers even if Redis does not, so that an alert can name the right outage."""

import asyncio

import structlog
from fastapi import APIRouter, Request, Response

from rolloutpool_api.access import MetricsReader
from rolloutpool_api.metrics import encode, families, outage
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.store import StoreError

_log = structlog.stdlib.get_logger(__name__)

router = APIRouter()


@router.get("/metrics", tags=["pool"], summary="Metrics in Prometheus' text format", response_class=Response)
async def metrics(services: ServicesDep, request: Request, _: MetricsReader) -> Response:
    """Counts of the whole pool, for all keys. While Redis does not answer, there is only `rolloutpool_redis_up 0`."""
    store = services.store
    try:
        # What this process has measured until now is in the answer.
        await services.reporter.report()
        totals, depths, workers, measured = await asyncio.gather(
            store.totals.read(), store.outbox.queue_depths(), store.workers.known(), store.measures.read()
        )
        found = families(totals, depths, workers, measured, owners=services.keys.owners)
    except StoreError as error:
        _log.warning("no metrics", error=error.message)
        found = outage()
    body, content_type = encode(found, request.headers.get("accept", ""))
    return Response(body, media_type=content_type)
