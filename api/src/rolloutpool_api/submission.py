"""From a request to what the store accepts.

What is stored are the request's own values, checked but not rewritten: the shared fields once, and per rollout only
what it set itself; `merge_spec` puts the two together for the worker. Only what has to be decided for the batch as a
whole is decided here: ids, groups and endpoints.
"""

import hashlib
import uuid
from collections.abc import Iterator
from typing import Any

import orjson

from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.validation import Catalog, CheckedBatch, canonical, check_batch, expanded_ids
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.store import NewBatch, NewRollout

__all__ = ["batch_key", "plan_batch", "plan_v1"]

# Fields of a rollout that are no fields of its spec, or that are decided here.
_DECIDED_HERE = frozenset({"rollout_id", "n", "group", "server_url", "deadline_seconds"})


def plan_v1(request: RolloutRequest, *, owner: str, deadline_s: float) -> NewBatch:
    """A synchronous rollout as a batch of one; TypeError where it holds an integer beyond 64 bits."""
    fields = request.model_dump(exclude={"tool_server_url"})
    return NewBatch(
        batch_id=_new_batch_id(),
        owner=owner,
        shared=b"{}",
        rollouts=[
            NewRollout(
                rollout_id=request.rollout_id,
                overrides=orjson.dumps({**fields, "v1": True}),
                deadline_s=deadline_s,
            )
        ],
        priority=Priority.HIGH,
        idempotency_key=f"v1/{request.rollout_id}",
        digest=hashlib.sha256(canonical(fields)).hexdigest(),
        v1=True,
    )


def plan_batch(
    document: Any, catalog: Catalog | None, restrictions: Restrictions, *, owner: str, idempotency_key: str | None
) -> NewBatch:
    """The batch that the document of `POST /v1/batches` asks for; raises `Rejected` with all its faults."""
    checked = check_batch(document, catalog, restrictions)
    batch = checked.batch
    urls = [] if batch.trainer is None else batch.trainer.urls()
    shared = _set_fields(checked.defaults)
    if batch.defaults.server_url is not None:
        shared["server_url"] = batch.defaults.server_url
    elif len(urls) == 1:
        shared["server_url"] = urls[0]
    return NewBatch(
        batch_id=_new_batch_id(),
        owner=owner,
        shared=orjson.dumps(shared),
        rollouts=list(_expand(checked, urls if len(urls) > 1 else [])),
        priority=batch.priority,
        run=batch.run,
        weight=batch.weight,
        group_policy=batch.group,
        labels=batch.labels,
        delivery=batch.delivery,
        idempotency_key=None if idempotency_key is None else batch_key(idempotency_key),
        digest=checked.digest,
    )


def batch_key(idempotency_key: str) -> str:
    """A batch's key in the store, where v1's rollout ids are keys too."""
    return f"batch/{idempotency_key}"


def _new_batch_id() -> str:
    return f"b{uuid.uuid4().hex}"


def _set_fields(raw: dict[str, Any]) -> dict[str, Any]:
    # A null tokenizer_name can't be meant as "none", so the default below it holds; other nulls are values.
    return {
        key: value
        for key, value in raw.items()
        if key not in _DECIDED_HERE and not (key == "tokenizer_name" and value is None)
    }


def _expand(checked: CheckedBatch, urls: list[str]) -> Iterator[NewRollout]:
    """The rollouts with `n` expanded; groups take the endpoints in turn, in the order in which they first appear."""
    default_deadline = checked.batch.defaults.deadline_seconds
    taken = {item.group for _, item in checked.rollouts if item.group is not None}
    ordinals: dict[str, int] = {}
    ordinal = -1
    for index, (raw, item) in enumerate(checked.rollouts):
        group = item.group
        if group is None and item.n > 1:
            group = item.rollout_id or f"rollouts[{index}]"
            while group in taken:
                group += "+"
            taken.add(group)
        if group is None or group not in ordinals:
            ordinal += 1
        mine = ordinal if group is None else ordinals.setdefault(group, ordinal)
        own = _set_fields(raw)
        if group is not None:
            own["group"] = group
        if item.server_url is not None:
            own["server_url"] = item.server_url
        elif urls:
            own["server_url"] = urls[mine % len(urls)]
        deadline = item.deadline_seconds if "deadline_seconds" in item.model_fields_set else default_deadline
        ids = [None] * item.n if item.rollout_id is None else expanded_ids(item.rollout_id, item.n)
        for rollout_id in ids:
            if rollout_id is not None:
                own["rollout_id"] = rollout_id
            yield NewRollout(rollout_id=rollout_id, overrides=orjson.dumps(own), group=group, deadline_s=deadline)
