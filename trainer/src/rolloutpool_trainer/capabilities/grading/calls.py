"""The calls by which ended rollouts are graded again, and by which figures are added to them and read."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolloutpool_common.capabilities.grading.annotating import (
    AnnotationsAccepted,
    GroupStatisticsList,
    RolloutAnnotations,
)
from rolloutpool_common.capabilities.grading.regrading import Regrade, RegradeRequest
from rolloutpool_trainer.client.calls import Call, read_model, resource

MAX_BODY = 900_000
"""Bytes; the pool takes 1 MB."""


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


def annotation_items(
    scalars: Mapping[str, Mapping[int | str, float]],
    streams: Mapping[str, Mapping[int | str, Sequence[Sequence[float | None]]]],
) -> Iterator[list[bytes]]:
    """Puts annotations by name in the form of the API, in as many bodies as they need.

    Yields:
        The JSON of some items, for `annotate`.
    """
    items: dict[int | str, dict[str, Any]] = {}
    for kind, named in (("scalars", scalars), ("streams", streams)):
        for name, values in named.items():
            for rollout, value in values.items():
                item = items.setdefault(rollout, {"rollout": rollout})
                item.setdefault(kind, {})[name] = value
    body: list[bytes] = []
    for item in items.values():
        text = json.dumps(item, separators=(",", ":")).encode()
        if body and sum(map(len, body)) + len(text) > MAX_BODY:
            yield body
            body = []
        body.append(text)
    if body:
        yield body


def annotate(batch_id: str, items: Sequence[bytes], salt: str) -> Call[AnnotationsAccepted]:
    """`POST /v1/batches/{id}/annotations`.

    Args:
        batch_id: The batch.
        items: As `annotation_items` makes them.
        salt: New for each call, so that only its own repetitions count as repetitions.
    """
    body = b'{"items":[' + b",".join(items) + b"]}"
    key = hashlib.blake2b(salt.encode() + body, digest_size=16).hexdigest()
    return Call(
        method="POST",
        path=f"{resource('batches', batch_id)}/annotations",
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
        body=body,
        read=read_model(AnnotationsAccepted),
    )


def annotations(uid: str) -> Call[RolloutAnnotations]:
    """`GET /v1/rollouts/{uid}/annotations`; takes the pool's uid only."""
    return Call(method="GET", path=f"{resource('rollouts', uid)}/annotations", read=read_model(RolloutAnnotations))


def group_statistics(batch_id: str, of: str) -> Call[GroupStatisticsList]:
    """`GET /v1/batches/{id}/group-statistics`."""
    path = f"{resource('batches', batch_id)}/group-statistics"
    return Call(method="GET", path=path, params={"of": of}, read=read_model(GroupStatisticsList))
