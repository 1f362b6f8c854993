"""From a request to the batch that the store accepts.

1. `check_batch` validates the whole document. One fault anywhere rejects all of it, so a batch never runs in part.
2. The shared fields are stored once, and per rollout only what it set itself. The values are the request's own,
   checked but not rewritten; `merge_spec` puts the two together for the worker.
3. Only what concerns the batch as a whole is decided here: groups, endpoints and ids.

The idempotency key makes a request safe to repeat: the store returns the first batch for the same key and digest, and
refuses the same key with another digest. The digest is that of the document with sorted keys, so that spaces and the
order of keys do not matter.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from rolloutpool_api.checks import Catalog, expanded_ids
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.validation import CheckedBatch, canonical, check_batch
from rolloutpool_common.composition import asks_of
from rolloutpool_common.protocol.batch import BatchRequest, Priority, RolloutItem
from rolloutpool_common.protocol.endpoint import EndpointOptions
from rolloutpool_common.protocol.environments import TOOL_SERVER
from rolloutpool_common.protocol.ids import new_batch_id
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.store import NewBatch, NewRollout

# Fields of a rollout that its spec does not have, or that are decided here. What is decided is added again.
_DECIDED_HERE = frozenset({"rollout_id", "n", "group", "server_url", "deadline_seconds"})


def plan_v1(request: RolloutRequest, *, owner: str, deadline_s: float, calls_tool_servers: bool = False) -> NewBatch:
    """Makes a batch of one from protocol v1's request."""
    # With the defaults filled in, so that a body that spells one out is the same request. A `tool_server_url` that is
    # not called makes no difference either.
    fields = request.model_dump(exclude={"tool_server_url"})
    spec = {**fields, "v1": True}
    if calls_tool_servers and request.tool_server_url:
        fields["tool_server_url"] = request.tool_server_url
        spec["environment"] = {"name": TOOL_SERVER, "task": request.tool_server_url}
    new = batch_of_one(spec, owner=owner, key=f"v1/{request.rollout_id}", deadline_s=deadline_s)
    return replace(new, digest=hashlib.sha256(canonical(fields)).hexdigest())


def batch_of_one(spec: dict[str, Any], *, owner: str, key: str, deadline_s: float | None) -> NewBatch:
    """Makes the batch of a rollout that came over `POST /rollout`; the store remembers it under this key."""
    rollout = NewRollout(rollout_id=spec["rollout_id"], overrides=orjson.dumps(spec), deadline_s=deadline_s)
    return NewBatch(
        batch_id=new_batch_id(),
        owner=owner,
        shared=b"{}",
        rollouts=[rollout],
        priority=Priority.HIGH,
        idempotency_key=key,
        v1=True,
    )


def plan_batch(
    document: Any, catalog: Catalog | None, restrictions: Restrictions, *, owner: str, idempotency_key: str | None
) -> NewBatch:
    """Makes the batch that the document of `POST /v1/batches` asks for."""
    checked = check_batch(document, catalog, restrictions)
    batch = checked.batch
    # A single endpoint is stored once, in the shared fields, and not with each of up to 10,000 rollouts.
    urls = [] if batch.trainer is None else batch.trainer.urls()
    shared = _set_fields(checked.defaults)
    if batch.trainer is not None:
        shared |= batch.trainer.endpoint_fields()
    if batch.defaults.server_url is not None:
        shared["server_url"] = batch.defaults.server_url
    elif len(urls) == 1:
        shared["server_url"] = urls[0]
    return NewBatch(
        batch_id=new_batch_id(),
        owner=owner,
        shared=orjson.dumps(shared),
        rollouts=list(_expand(checked, urls if len(urls) > 1 else [])),
        priority=batch.priority,
        run=batch.run,
        weight=batch.weight,
        lease_s=batch.lease_seconds,
        group_policy=batch.group,
        labels=batch.labels,
        asks=asks_of(batch, [checked.defaults, *(raw for raw, _ in checked.rollouts)]),
        idempotency_key=None if idempotency_key is None else batch_key(idempotency_key),
        digest=checked.digest,
        attaches=_attaches(checked),
    )


def batch_key(idempotency_key: str) -> str:
    """Makes the key under which the store remembers a batch; protocol v1's rollouts have keys of another form."""
    return f"batch/{idempotency_key}"


def _attaches(checked: CheckedBatch) -> bool:
    trainer, defaults = checked.batch.trainer, checked.batch.defaults
    return bool((trainer is not None and trainer.attach) or defaults.attach) or any(
        item.attach for _, item in checked.rollouts
    )


def _set_fields(raw: dict[str, Any]) -> dict[str, Any]:
    # A null tokenizer_name means the default, because no rollout runs without one. Other nulls are values.
    fields = {
        key: value
        for key, value in raw.items()
        if key not in _DECIDED_HERE and not (key == "tokenizer_name" and value is None)
    }
    # Until 0.3 this was an option of its own, and `fail` took no promise back.
    if fields.pop("on_ambiguous_turn", "fail") == "retry":
        fields["idempotent"] = True
    return fields


def _groups(rollouts: Sequence[tuple[dict[str, Any], RolloutItem]]) -> list[str | None]:
    """Names the group of each item: its own, or a new one for an item with `n` above 1; None for a single rollout."""
    # All names of the document, later ones too: a name that is made up here must not join somebody's group.
    taken = {item.group for _, item in rollouts if item.group is not None}
    names: list[str | None] = []
    for index, (_, item) in enumerate(rollouts):
        name = item.group
        if name is None and item.n > 1:
            name = item.rollout_id or f"rollouts[{index}]"
            while name in taken:
                name += "+"
            taken.add(name)
        names.append(name)
    return names


def _endpoints(groups: Sequence[str | None], urls: Sequence[str]) -> list[str | None]:
    """Gives each item an endpoint in turn; a group, which may be several items, counts once. None without `urls`."""
    if not urls:
        return [None] * len(groups)
    turns: dict[str, int] = {}
    chosen: list[str | None] = []
    taken = 0
    for group in groups:
        turn = taken if group is None else turns.setdefault(group, taken)
        # Only a new turn counts; a later item of a group gets the turn that the group has.
        taken += turn == taken
        chosen.append(urls[turn % len(urls)])
    return chosen


def _elsewhere(batch: BatchRequest) -> dict[str, Any]:
    """Returns what holds at an endpoint that is not the batch's `trainer`, in the place of what is said of that one."""
    if batch.trainer is None:
        return {}
    others = batch.defaults.model_dump(mode="json", include=set(EndpointOptions.model_fields))
    return {name: others[name] for name in batch.trainer.endpoint_fields()}


def _expand(checked: CheckedBatch, urls: Sequence[str]) -> Iterator[NewRollout]:
    """Makes the rollouts of a batch: first the groups, then the endpoints, then the ids of each item's `n` rollouts."""
    default_deadline = checked.batch.defaults.deadline_seconds
    elsewhere = _elsewhere(checked.batch)
    groups = _groups(checked.rollouts)
    endpoints = _endpoints(groups, urls)
    for (raw, item), group, endpoint in zip(checked.rollouts, groups, endpoints, strict=True):
        own = _set_fields(raw)
        if group is not None:
            own["group"] = group
        if (url := item.server_url or endpoint) is not None:
            own["server_url"] = url
        if item.server_url is not None:
            own = {**elsewhere, **own}
        # An explicit null means no deadline, so a missing field and a null are told apart.
        deadline = item.deadline_seconds if "deadline_seconds" in item.model_fields_set else default_deadline
        ids = [None] * item.n if item.rollout_id is None else expanded_ids(item.rollout_id, item.n)
        for rollout_id in ids:
            if rollout_id is not None:
                own["rollout_id"] = rollout_id
            yield NewRollout(rollout_id=rollout_id, overrides=orjson.dumps(own), group=group, deadline_s=deadline)
