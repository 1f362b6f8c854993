"""The calls by which ended rollouts are graded again."""

import hashlib

from rolloutpool_common.capabilities.grading.regrading import Regrade, RegradeRequest
from rolloutpool_trainer.client.calls import Call, read_model, resource


def regrade(batch_id: str, request: RegradeRequest, salt: str) -> Call[Regrade]:
    """`POST /v1/batches/{id}/regrades`; takes a salt as `annotate` does."""
    body = request.model_dump_json(exclude_none=True).encode()
    key = hashlib.blake2b(salt.encode() + body, digest_size=16).hexdigest()
    return Call(
        method="POST",
        path=f"{resource('batches', batch_id)}/regrades",
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
        body=body,
        read=read_model(Regrade),
    )


def regrade_state(batch_id: str, regrade_id: str) -> Call[Regrade]:
    """`GET /v1/batches/{id}/regrades/{regrade_id}`."""
    path = f"{resource('batches', batch_id)}/regrades/{regrade_id}"
    return Call(method="GET", path=path, read=read_model(Regrade))
