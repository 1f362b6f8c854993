"""What goes into the store and comes out of it, and its coding.

Records are JSON (orjson); from 4 kB on results and journal records are compressed (docs/decisions/0010). The first byte
tells the two apart: `{` or 0x28.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import orjson
import zstandard

from rolloutpool_common.protocol.batch import Delivery, Priority
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.workers import WorkerRole

__all__ = [
    "Capacity",
    "Claim",
    "ClaimRefused",
    "DuePush",
    "NewBatch",
    "NewRollout",
    "ResultSlice",
    "Submitted",
    "Ticket",
    "compress",
    "expand",
    "merge_spec",
    "result_counts",
]

COMPRESS_FROM = 4096


def compress(data: bytes) -> bytes:
    """zstd-1 from 4 kB on."""
    return zstandard.compress(data, 1) if len(data) >= COMPRESS_FROM else data


def expand(data: bytes) -> bytes:
    """The JSON text behind a stored value."""
    return zstandard.decompress(data) if data[:1] == b"\x28" else data


@dataclass(frozen=True, kw_only=True)
class NewRollout:
    """One rollout of a batch that is submitted."""

    rollout_id: str | None
    """The caller's name; null where the uid serves."""
    overrides: bytes = field(repr=False)
    """JSON object: the fields of its `RolloutSpec` that differ from the batch's shared ones."""
    group: str | None = None
    deadline_s: float | None = None
    """Seconds from the commit."""


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch that is submitted, validated in full."""

    batch_id: str
    owner: str
    """Whose it is; others can't see it."""
    shared: bytes = field(repr=False)
    """JSON object: the fields of `RolloutSpec` common to all."""
    rollouts: Sequence[NewRollout]
    priority: Priority = Priority.DEFAULT
    labels: dict[str, str] = field(default_factory=dict)
    delivery: Delivery | None = None
    run: str | None = None
    """Which training run it belongs to; runs share the workers by weight. Null: a run of its own."""
    weight: int = 1
    group_policy: GroupPolicy | None = None
    idempotency_key: str | None = None
    digest: str = ""
    """Of the request; the same key with another digest is a conflict."""
    v1: bool = False


class Submitted(NamedTuple):
    """What a submit did."""

    batch_id: str
    created: bool
    """False: the same request was accepted before, and this is its batch."""


class ResultSlice(NamedTuple):
    """Some results in the order of ending."""

    items: list[tuple[str, bytes]]
    """(cursor, JSON of a `RolloutResult`)"""
    next_cursor: str
    complete: bool


@dataclass(frozen=True)
class Ticket:
    """One rollout on its way through the broker."""

    batch_id: str
    index: int
    group: str
    published_ms: float
    """When it left the outbox, on Redis' clock."""


class Capacity(NamedTuple):
    """How full the pool is."""

    open_rollouts: int
    used_bytes: int
    max_bytes: int
    """0 where Redis has no limit."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one rollout, until the token is replaced."""

    uid: str
    batch_id: str
    index: int
    worker_id: str
    role: WorkerRole
    """Of the worker."""
    token: str
    attempt: int
    """From 1."""
    crashes: int
    """How often a worker died while it had this rollout, since it last got anywhere."""
    retries: int
    """How often it was given back after an infra failure."""
    deferrals: int
    """How often it was given back because its trainer's port was down."""
    journal_length: int
    clean: bool
    """False: the last attempt died, so a model call of it may have been in flight."""
    group: str | None
    deadline_in_s: float | None
    """Seconds from the claim; to be counted on a monotonic clock."""
    queued_ms: float
    """From acceptance to this claim."""
    spec: RolloutSpec
    more_waiting: bool
    """Whether outboxes of this priority class have rollouts to publish."""


class ClaimRefused(StrEnum):
    """Why a worker does not get a rollout."""

    GONE = "gone"
    """Its batch was deleted."""
    ENDED = "ended"
    """It has ended, or its batch was cancelled."""
    TAKEN = "taken"
    """Another worker has it, or it waits for an isolated worker."""
    EXPIRED = "expired"
    """Its deadline has passed."""
    ISOLATED = "isolated"
    """It is a suspect and may run only in an isolated worker; this worker is to start one."""


class DuePush(NamedTuple):
    """A result that has to be pushed."""

    uid: str
    attempt: int


def merge_spec(shared: bytes | dict[str, Any], overrides: bytes | dict[str, Any], *, uid: str) -> RolloutSpec:
    """The spec of one rollout: its own fields win, sampling parameters and metadata key by key."""
    base = orjson.loads(shared) if isinstance(shared, bytes) else shared
    own = orjson.loads(overrides) if isinstance(overrides, bytes) else overrides
    merged = {"rollout_id": uid, **base, **own}
    for key in ("sampling_params", "metadata"):
        merged[key] = {**base.get(key, {}), **own.get(key, {})}
    return RolloutSpec.model_validate(merged)


def result_counts(result: RolloutResult) -> list[str | int]:
    """What this result adds to its batch's counters: field, increment, and so on."""
    counts: dict[str, int] = {
        "sampled": sum(sum(sample.response_mask) for sample in result.samples),
        "tokens": sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in result.samples),
        "turns": result.num_llm_calls,
    }
    if result.alignment is not None:
        counts[f"alignment:{result.alignment}"] = 1
    if result.failure is not None:
        counts[f"failure:{result.failure.kind}:{result.failure.category}"] = 1
    for label, n in result.drift.items():
        counts[f"drift:{label}"] = n
    for warning in result.warnings:
        counts[f"warning:{warning}"] = 1
    return [part for name, n in counts.items() if n for part in (name, n)]
