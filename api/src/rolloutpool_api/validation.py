"""Validate all or reject all: checks the document of `POST /v1/batches`, and lists everything that is wrong with it.

1. What surrounds the rollouts is validated as one model, and each rollout as a model of its own. So no fault hides
   another, and each has its path in the document.
2. What no model can see is a `Check` (`checks`, `restrictions`). The rollouts are walked once, and every check sees
   each of them.
3. Faults are listed in the order of the checks, at most 1000 of them; all are counted.
4. One fault rejects the whole batch. A batch without faults comes back with its digest, which the idempotency key
   is stored with.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from rolloutpool_api.checks import (
    AttachmentCheck,
    Catalog,
    Check,
    CompleteCheck,
    GroupCheck,
    IdCheck,
    NameCheck,
)
from rolloutpool_api.composition import BATCH_CHECKS, CHECKS
from rolloutpool_api.errors import MalformedBody, Rejected
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_common.protocol.batch import BatchRequest, RolloutItem, TrainerPorts, TrainerUrls
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS

# Stands in for the rollouts while the rest of the document is validated: the model demands at least one.
_ANY_ROLLOUT = RolloutItem.model_validate({"messages": [{"role": "user"}]})


@dataclass(frozen=True)
class CheckedBatch:
    """A document without faults: its parts as models, and as they stand in the document."""

    batch: BatchRequest
    """All of it but the rollouts."""
    defaults: dict[str, Any]
    """As they stand in the document."""
    rollouts: list[tuple[dict[str, Any], RolloutItem]]
    """Each as it stands in the document, and validated; the messages stand in the document alone."""
    digest: str
    """SHA-256 of its canonical form, hex."""


def canonical(document: Any) -> bytes:
    """Writes a document so that spaces and the order of keys do not matter."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def check_batch(document: Any, catalog: Catalog | None, restrictions: Restrictions) -> CheckedBatch:
    """Validates a document as a whole."""
    if not isinstance(document, dict):
        raise MalformedBody('the body is JSON, but not an object; send {"rollouts": [...], ...}')
    faults = FaultList()
    trainer = _validate_trainer(document.get("trainer"), faults)
    batch = _validate_envelope(document, trainer, faults)
    raw = _raw_rollouts(document, faults)

    items = _ItemCheck()
    checks: list[Check] = [items, NameCheck(catalog), IdCheck()]
    if batch is not None and batch.group is not None:
        checks.append(GroupCheck(batch.group))
    if batch is not None:
        checks += [*(check for make in BATCH_CHECKS for check in make(batch)), AttachmentCheck(batch)]
    checks += [*(make() for make in CHECKS), CompleteCheck(), *restrictions.checks(trainer, catalog)]
    for check in checks:
        check.see_document(document)
    for index, value in enumerate(raw):
        # Validated once here, for all checks: a batch may have 10,000 rollouts.
        item = items.validate(index, value)
        for check in checks:
            check.see_rollout(index, value, item)
        if item is not None:
            # What is stored are the raw messages. As models, small messages take 20 times their size.
            item.messages = []
    for check in checks:
        check.see_end()
        # Each check has a list of its own, so that the faults of one kind stand together in the answer.
        faults.extend(check.faults)

    # Before the verdict, because only writing the document finds integers beyond 64 bits, which are a fault too.
    digest = _digest(document, raw, faults)
    if batch is None or faults.total:
        raise Rejected(faults.listed, faults.total)
    return CheckedBatch(batch, document.get("defaults") or {}, items.valid, digest)


class _ItemCheck(Check):
    """Each rollout fits its model."""

    def __init__(self) -> None:
        super().__init__()
        self.valid: list[tuple[dict[str, Any], RolloutItem]] = []

    def validate(self, index: int, raw: Any) -> RolloutItem | None:
        if not isinstance(raw, dict):
            self.faults.add(path("rollouts", index), 'must be an object, like {"messages": [...]}')
            return None
        try:
            item = RolloutItem.model_validate(raw)
        except ValidationError as error:
            self.faults.add_all(error, raw, at=("rollouts", index))
            return None
        self.valid.append((raw, item))
        return item


def _validate_trainer(trainer: Any, faults: FaultList) -> TrainerUrls | TrainerPorts | None:
    """Validates the one form of a trainer that was meant; as a union, pydantic would find fault with both."""
    if trainer is None:
        return None
    if not isinstance(trainer, dict):
        faults.add("trainer", 'must be {"server_urls": [...]} or {"host": ..., "base_port": ..., "workers": ...}')
        return None
    meant = TrainerUrls if "server_urls" in trainer else TrainerPorts
    try:
        return meant.model_validate(trainer)
    except ValidationError as error:
        faults.add_all(error, trainer, at=("trainer",))
        return None


def _validate_envelope(
    document: dict[str, Any], trainer: TrainerUrls | TrainerPorts | None, faults: FaultList
) -> BatchRequest | None:
    try:
        return BatchRequest.model_validate({**document, "rollouts": [_ANY_ROLLOUT], "trainer": trainer})
    except ValidationError as error:
        faults.add_all(error, document)
        return None


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


def _digest(document: dict[str, Any], raw: list[Any], faults: FaultList) -> str:
    try:
        return hashlib.sha256(canonical(document)).hexdigest()
    except TypeError:
        # The error does not say where the number is, so the parts are written one by one.
        for at, value in _parts(document, raw):
            try:
                canonical(value)
            except TypeError:
                faults.add(path(*at), "holds an integer beyond 64 bits; send it as a string")
        return ""


def _parts(document: dict[str, Any], raw: list[Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    for key, value in document.items():
        if key != "rollouts":
            yield (key,), value
    for index, value in enumerate(raw):
        yield ("rollouts", index), value
