"""The call by which results are pushed again."""

from rolloutpool_common.capabilities.webhooks.wire import PushesRetried
from rolloutpool_trainer.client.calls import Call, read_model, resource


def retry_pushes(batch_id: str) -> Call[PushesRetried]:
    """`POST /v1/batches/{id}/pushes/retry`; the answer says how many results are due at the webhook."""
    return Call(method="POST", path=f"{resource('batches', batch_id)}/pushes/retry", read=read_model(PushesRetried))
