"""A claim: the right to run one rollout, and what its worker is told with it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.records import merge_spec
from rolloutpool_common.store.write_waits import WriteWaits


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one rollout, for as long as Redis has this token."""

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
    """How many workers died while they had this rollout, since its last progress."""
    retries: int
    """How often it was given back after an infra failure."""
    deferrals: int
    """How often it was given back because its trainer's port was down."""
    journal_length: int
    """Records that earlier attempts left."""
    clean: bool
    """False: a model call of an earlier attempt may be unanswered, so the next turn is ambiguous."""
    group: str | None
    deadline_in_s: float | None
    """Seconds from the claim; to be counted on a monotonic clock."""
    queued_ms: float
    """From the commit of its batch to this claim."""
    spec: RolloutSpec
    more_waiting: bool
    """Whether outboxes of this priority class have rollouts to publish."""
    priority: Priority = Priority.DEFAULT
    attachment_bytes: int = 0
    """What its attachments may take; 0 where its batch asked for none."""
    tried: int = 0
    """Calls of its present turn that failed in a row, without an answer, before a drain ended the last attempt."""
    called: bool = False
    """Whether its first model call was noted with the claim (`model_calls.py`)."""
    stage: str | None = None
    """The capability in whose stage it is: its conversation is complete (`capability.py`)."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What capabilities say of it, by name, as their scripts answer it."""
    claimed_at: float = field(default_factory=time.perf_counter, compare=False)
    """When this process got it, on its `time.perf_counter`."""
    waits: WriteWaits = field(default_factory=WriteWaits, compare=False)
    """What its writes have waited for so far."""

    def accepted_ms(self, at: float) -> float:
        """Returns the milliseconds from the rollout's acceptance to a point of time on `time.perf_counter`."""
        return self.queued_ms + (at - self.claimed_at) * 1000


class ClaimRefused(StrEnum):
    """Why a worker does not get a rollout."""

    GONE = "gone"
    """Its batch was deleted."""
    ENDED = "ended"
    """It has ended, or its batch was cancelled."""
    TAKEN = "taken"
    """Another worker has it, or it is a suspect and waits for an isolated worker."""
    EXPIRED = "expired"
    """Its deadline has passed."""
    PAUSED = "paused"
    """Its run is paused. The rollout is queued again, and published when the run is resumed."""
    UNSUITED = "unsuited"
    """This worker lacks something that the rollout names. It waits for a worker that has it; this is no attempt."""
    CONDEMNED = "condemned"
    """This worker was declared dead, and must announce itself again first. The rollout is queued again."""


def read_claim(answer: dict[str, Any], uid: str, worker_id: str, role: WorkerRole, token: str) -> Claim:
    """Makes a claim of what the script `claim` has answered."""
    batch_id, _, index = uid.rpartition("-")
    now, deadline = int(answer["now_ms"]), answer["deadline_ms"]
    return Claim(
        uid=uid,
        batch_id=batch_id,
        index=int(index),
        worker_id=worker_id,
        role=role,
        token=token,
        attempt=answer["attempt"],
        crashes=answer["crashes"],
        retries=answer["retries"],
        deferrals=answer["deferrals"],
        journal_length=answer["journal_length"],
        clean=bool(answer["clean"]),
        group=answer["group"].decode() or None,
        deadline_in_s=(int(deadline) - now) / 1000 if deadline else None,
        queued_ms=float(now - int(answer["created_ms"])),
        spec=merge_spec(answer["shared"], answer["overrides"], uid=uid),
        stage=answer["stage"].decode() or None,
        notes=named(answer["notes"]) if answer["notes"] else {},
        more_waiting=bool(answer["more_waiting"]),
        priority=Priority(answer["priority"].decode()),
        attachment_bytes=answer["attachment_bytes"],
        tried=answer["tried"],
        called=bool(answer["called"]),
    )
