"""Says what a webhook has not taken is pushed again."""

from fastapi import APIRouter

from rolloutpool_api.access import Submitter
from rolloutpool_api.routes.batches import BatchId, unknown_batch
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.capabilities.webhooks.pushes import Pushes
from rolloutpool_common.capabilities.webhooks.wire import PushesRetried

router = APIRouter(tags=["batches"])


@router.post(
    "/v1/batches/{batch_id}/pushes/retry",
    summary="Push what the webhook has not taken, now",
    responses=errors(404, 422),
)
async def retry_pushes(batch_id: BatchId, services: ServicesDep, caller: Submitter) -> PushesRetried:
    """Makes results due that wait for their webhook, and those whose push was given up."""
    total = await services.store.batches.total(batch_id, caller.sees)
    if total is None:
        raise unknown_batch(batch_id)
    return PushesRetried(batch_id=batch_id, due=await Pushes(services.store).retry(batch_id, total))
