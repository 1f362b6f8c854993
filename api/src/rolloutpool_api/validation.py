"""Checks the document of `POST /v1/batches` as a whole, and lists everything that is wrong with it.

The rollouts are validated one by one and the rest around them, so that no fault hides another; what no model can see
(duplicates, missing endpoints, names that no worker knows) is checked on the raw document, whatever else is wrong.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from rolloutpool_api.errors import MalformedBody, Rejected
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_common.protocol.batch import BatchRequest, RolloutItem, TrainerPorts, TrainerUrls
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS
from rolloutpool_common.protocol.workers import Worker

__all__ = ["Catalog", "CheckedBatch", "canonical", "check_batch"]

HINTS = ("max_assistant_turns", "max_user_turns", "budget_tokens")
LONGEST_ID = 256

# Stands in for the rollouts while the rest of the document is validated.
_ANY_ROLLOUT = {"messages": [{"role": "user"}]}


@dataclass(frozen=True)
class Catalog:
    """What the live workers can run."""

    tools: frozenset[str]
    agents: frozenset[str]
    termination_strategies: frozenset[str]

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> "Catalog | None":
        """All that any live worker announces; None while there is none: then no name is known to be wrong."""
        live = [worker for worker in workers if worker.alive]
        if not live:
            return None
        return cls(
            tools=frozenset(name for worker in live for name in worker.tools),
            agents=frozenset(name for worker in live for name in worker.agents),
            termination_strategies=frozenset(name for worker in live for name in worker.termination_strategies),
        )


@dataclass(frozen=True)
class CheckedBatch:
    """A document without faults."""

    batch: BatchRequest
    """All of it but the rollouts."""
    defaults: dict[str, Any]
    """As they stand in the document."""
    rollouts: list[tuple[dict[str, Any], RolloutItem]]
    """Each as it stands in the document, and validated."""
    digest: str
    """Of its canonical form."""


def canonical(document: Any) -> bytes:
    """The same for documents that differ in spaces and key order only; TypeError where a number is beyond 64 bits."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def check_batch(document: Any, catalog: Catalog | None, restrictions: Restrictions) -> CheckedBatch:
    """Raises `Rejected` with every fault of the document."""
    if not isinstance(document, dict):
        raise MalformedBody('the body is JSON, but not an object; send {"rollouts": [...], ...}')
    faults = FaultList()
    batch = _validate_envelope(document, faults)
    raw = _raw_rollouts(document, faults)
    items = [_validate_item(value, index, faults) for index, value in enumerate(raw)]
    defaults = _object(document.get("defaults"))
    _check_names(defaults, ("defaults",), catalog, faults)
    for index, value in enumerate(raw):
        _check_names(_object(value), ("rollouts", index), catalog, faults)
    _check_ids(raw, items, faults)
    if batch is not None and batch.group is not None:
        _check_groups(batch.group, items, faults)
    _check_complete(document, raw, faults)
    restrictions.check_batch(document, raw, faults)
    digest = _digest(document, raw, faults)
    if batch is None or faults.total:
        raise Rejected(faults.listed, faults.total)
    valid = [(value, item) for value, item in zip(raw, items, strict=True) if item is not None]
    return CheckedBatch(batch, defaults, valid, digest)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _validate_envelope(document: dict[str, Any], faults: FaultList) -> BatchRequest | None:
    rest = {**document, "rollouts": [_ANY_ROLLOUT]}
    if document.get("trainer") is not None and not _trainer_is_valid(document["trainer"], faults):
        del rest["trainer"]
    try:
        return BatchRequest.model_validate(rest)
    except ValidationError as error:
        faults.add_all(error, document)
        return None


def _trainer_is_valid(trainer: Any, faults: FaultList) -> bool:
    """Checks the one form of a trainer that was meant; as a union, pydantic would find fault with both."""
    if not isinstance(trainer, dict):
        faults.add("trainer", 'must be {"server_urls": [...]} or {"host": ..., "base_port": ..., "workers": ...}')
        return False
    meant = TrainerUrls if "server_urls" in trainer else TrainerPorts
    try:
        meant.model_validate(trainer)
    except ValidationError as error:
        faults.add_all(error, trainer, at=("trainer",))
        return False
    return True


def _raw_rollouts(document: dict[str, Any], faults: FaultList) -> list[Any]:
    raw = document.get("rollouts")
    if "rollouts" not in document:
        faults.add("rollouts", "required")
    elif not isinstance(raw, list):
        faults.add("rollouts", "must be a list")
    elif not raw:
        faults.add("rollouts", "must have at least one rollout")
    elif len(raw) > MAX_ROLLOUTS:
        faults.add("rollouts", f"has {len(raw)} rollouts, at most {MAX_ROLLOUTS}; send several batches")
    else:
        return raw
    return []


def _validate_item(value: Any, index: int, faults: FaultList) -> RolloutItem | None:
    try:
        return RolloutItem.model_validate(value)
    except ValidationError as error:
        faults.add_all(error, value, at=("rollouts", index))
        return None


def _check_names(options: dict[str, Any], at: Sequence[str | int], catalog: Catalog | None, faults: FaultList) -> None:
    """Names must be known to a worker, and hints must be numbers that can be honoured."""
    metadata = _object(options.get("metadata"))
    for hint in HINTS:
        value = metadata.get(hint)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            faults.add(path(*at, "metadata", hint), "must be a positive integer, or absent")
    strategy = metadata.get("termination_strategy")
    if strategy is not None and not isinstance(strategy, str):
        faults.add(path(*at, "metadata", "termination_strategy"), "must be a string, or absent")
    if catalog is None:
        return
    if isinstance(strategy, str) and strategy not in catalog.termination_strategies:
        faults.add(
            path(*at, "metadata", "termination_strategy"),
            _unknown("termination strategy", strategy, catalog.termination_strategies),
        )
    agent = options.get("agent")
    if isinstance(agent, str) and agent not in catalog.agents:
        faults.add(path(*at, "agent"), _unknown("agent", agent, catalog.agents))
    tools = options.get("tools")
    for position, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, str) and tool not in catalog.tools:
            faults.add(path(*at, "tools", position), _unknown("tool", tool, catalog.tools))


def _unknown(what: str, name: str, known: frozenset[str]) -> str:
    return f"no live worker has the {what} {name[:100]!r}; they have: {', '.join(sorted(known)) or 'none'}"


def _check_ids(raw: list[Any], items: list[RolloutItem | None], faults: FaultList) -> None:
    """The ids, with `n` expanded, are unique and short enough, and not too many."""
    total = 0
    owners: dict[str, int] = {}
    for index, (value, item) in enumerate(zip(raw, items, strict=True)):
        n = 1 if item is None else item.n
        total += n
        name = _object(value).get("rollout_id")
        if not isinstance(name, str):
            continue
        if n > 1 and len(name) + len(f"-{n - 1}") > LONGEST_ID:
            faults.add(path("rollouts", index, "rollout_id"), f"has no room for -{n - 1}: {LONGEST_ID} characters")
        for rollout_id in expanded_ids(name, n):
            owner = owners.setdefault(rollout_id, index)
            if owner != index:
                faults.add(
                    path("rollouts", index, "rollout_id"),
                    f"{rollout_id[:LONGEST_ID]!r} is also an id of rollouts[{owner}]; ids are unique in a batch",
                )
    if total > MAX_ROLLOUTS:
        faults.add("rollouts", f"{total} rollouts with `n` counted, at most {MAX_ROLLOUTS}; send several batches")


def _check_groups(policy: GroupPolicy, items: list[RolloutItem | None], faults: FaultList) -> None:
    """Every group can have what the policy asks of it."""
    sizes: Counter[str] = Counter()
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        if item is None or (item.group is None and item.n == 1):
            continue
        name = item.group or f"rollouts[{index}]"
        sizes[name] += item.n
        first.setdefault(name, index)
    for name, size in sizes.items():
        path = f"rollouts[{first[name]}].group"
        if policy.size is not None and size != policy.size:
            faults.add(path, f"group {name[:64]!r} has {size} rollouts, group.size says {policy.size}")
        elif size < policy.min_usable:
            faults.add(
                path, f"group {name[:64]!r} has {size} rollouts, fewer than group.min_usable {policy.min_usable}"
            )


def expanded_ids(rollout_id: str, n: int) -> list[str]:
    """The ids of an item's rollouts."""
    return [rollout_id] if n == 1 else [f"{rollout_id}-{i}" for i in range(n)]


def _check_complete(document: dict[str, Any], raw: list[Any], faults: FaultList) -> None:
    """Every rollout has a tokenizer and an endpoint."""
    defaults = _object(document.get("defaults"))
    has_trainer, has_url = document.get("trainer") is not None, defaults.get("server_url") is not None
    if has_trainer and has_url:
        faults.add("trainer", "`defaults.server_url` would win over it everywhere; keep one of the two")
    for index, value in enumerate(raw):
        own = value if isinstance(value, dict) else None
        if own is None:
            continue
        if own.get("tokenizer_name") is None and defaults.get("tokenizer_name") is None:
            faults.add(path("rollouts", index, "tokenizer_name"), "required, here or in `defaults`")
        if own.get("server_url") is None and not (has_trainer or has_url):
            faults.add(
                path("rollouts", index, "server_url"),
                "no endpoint: set it here or in `defaults`, or give the batch a `trainer`",
            )


def _digest(document: dict[str, Any], raw: list[Any], faults: FaultList) -> str:
    try:
        return hashlib.sha256(canonical(document)).hexdigest()
    except TypeError:
        parts = [((key,), value) for key, value in document.items() if key != "rollouts"]
        for at, value in [*parts, *((("rollouts", index), value) for index, value in enumerate(raw))]:
            try:
                canonical(value)
            except TypeError:
                faults.add(path(*at), "holds an integer beyond 64 bits; send it as a string")
        return ""
