"""The calls by which ended rollouts are graded again, and by which figures are added to them and read."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolloutpool_common.capabilities.grading.annotating import (
    AnnotationsAccepted,
    GroupStatisticsList,
    Regrade,
    RegradeRequest,
    RolloutAnnotations,
)
from rolloutpool_trainer.client.calls import JSON, Call, ModelT, json_bytes, read_model, resource

MAX_BODY = 900_000
"""Bytes; the pool takes 1 MB."""


def regrade(batch_id: str, request: RegradeRequest) -> Call[Regrade]:
    """`POST /v1/batches/{id}/regrades`."""
    return _post(batch_id, "regrades", request.model_dump_json(exclude_none=True).encode(), Regrade)


def regrade_state(batch_id: str, regrade_id: str) -> Call[Regrade]:
    """`GET /v1/batches/{id}/regrades/{regrade_id}`."""
    path = f"{resource('batches', batch_id)}/regrades/{regrade_id}"
    return Call(method="GET", path=path, read=read_model(Regrade))


def annotate(
    batch_id: str,
    scalars: Mapping[str, Mapping[int | str, float]],
    streams: Mapping[str, Mapping[int | str, Sequence[Sequence[float | None]]]],
) -> Iterator[Call[AnnotationsAccepted]]:
    """`POST /v1/batches/{id}/annotations`, as often as it takes to add figures that are given by name, then rollout."""
    items: dict[int | str, dict[str, Any]] = {}
    for kind, named in (("scalars", scalars), ("streams", streams)):
        for name, values in named.items():
            for rollout, value in values.items():
                item = items.setdefault(rollout, {"rollout": rollout})
                item.setdefault(kind, {})[name] = value
    body: list[bytes] = []
    for item in items.values():
        text = json_bytes(item)
        if body and sum(map(len, body)) + len(text) > MAX_BODY:
            yield _annotate(batch_id, body)
            body = []
        body.append(text)
    if body:
        yield _annotate(batch_id, body)


def _annotate(batch_id: str, items: Sequence[bytes]) -> Call[AnnotationsAccepted]:
    return _post(batch_id, "annotations", b'{"items":[' + b",".join(items) + b"]}", AnnotationsAccepted)


def _post(batch_id: str, what: str, body: bytes, answer: type[ModelT]) -> Call[ModelT]:
    """Makes a call that is carried out once, however often it is sent; another call of the same body is another one."""
    return Call(
        method="POST",
        path=f"{resource('batches', batch_id)}/{what}",
        headers={**JSON, "Idempotency-Key": secrets.token_hex(16)},
        body=body,
        read=read_model(answer),
    )


def annotations(uid: str) -> Call[RolloutAnnotations]:
    """`GET /v1/rollouts/{uid}/annotations`; takes the pool's uid only."""
    return Call(method="GET", path=f"{resource('rollouts', uid)}/annotations", read=read_model(RolloutAnnotations))


def group_statistics(batch_id: str, of: str) -> Call[GroupStatisticsList]:
    """`GET /v1/batches/{id}/group-statistics`."""
    path = f"{resource('batches', batch_id)}/group-statistics"
    return Call(method="GET", path=path, params={"of": of}, read=read_model(GroupStatisticsList))
