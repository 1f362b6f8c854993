"""`GET /v1/overview`: what is wrong in a pool now, the worst first, and what to do about it."""

from typing import Literal

from pydantic import ConfigDict, Field

from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.protocol.workers import Queue


class Trouble(Answer):
    """One thing that holds work up, or puts it at risk."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["not_ready", "closed", "silent", "waits", "failed", "drift", "dead_letters", "warning"]
    """The pool can run nothing; it takes no work; workers are not heard of; rollouts wait; all rollouts of batches
    failed; rollouts were split, because the trainer had rendered their history in another way; rollouts were given up;
    a setting."""
    title: str
    """What it is, in a few words."""
    detail: str = ""
    """What was said last: by the trainer, in a failure."""
    todo: str
    """What the reader can do."""
    rollouts: int = 0
    """How many it holds up, of the batches that were looked at."""
    waits_for: WaitsFor | None = None
    """Of rollouts that wait."""
    endpoint: str | None = None
    """The trainer's address, where it is about one."""
    batches: list[str] = Field(default_factory=list)
    """Some of the batches that it is about, the newest first."""


class PoolFigures(Answer):
    """What only operators see, because it is of all callers."""

    workers: int
    """Those that are alive."""
    draining: int
    slots: int
    running: int
    """Rollouts that they run."""
    queues: dict[Priority, Queue]
    oldest_ticket_s: float
    """How long the oldest ticket has waited for a worker."""
    open: int
    """Rollouts that have not ended."""
    paused_runs: int
    redis_bytes: int
    redis_limit_bytes: int
    """0: there is none."""
    builds: dict[str, int]
    """Workers by what they were built from: their version, and their commit where it is known."""


class PoolOverview(Answer):
    """What a person looks at first."""

    verdict: str
    """All of it in a line."""
    troubles: list[Trouble]
    """By how many rollouts they hold up; what stops all of them comes first."""
    running: int
    """The caller's batches that run, of those that were looked at: the newest ones."""
    pool: PoolFigures | None
    """Null for a caller who sees their own batches only."""
