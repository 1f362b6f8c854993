"""What the store's state machine expects of rollouts and batches: plain Python, no Redis."""

from dataclasses import dataclass, field
from typing import Any

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.workers import WorkerRole

GROUP = "g"
"""The group of all rollouts of a batch whose groups are graded as a whole."""


@dataclass
class RolloutModel:
    """One rollout."""

    batch: "BatchModel"
    status: str = "queued"
    token: str | None = None
    worker: str = ""
    attempts: int = 0
    crashes: int = 0
    """Since its journal grew."""
    retries: int = 0
    losses: int = 0
    """Attempts that ended without a result."""
    clean: bool = True
    called: bool = False
    """Whether its claim has a record in the journal; without one, no model call was noted under it."""
    journal: list[JournalRecord] = field(default_factory=list)
    broken: bool = False
    """Whether its journal has a record that nobody can read."""
    kept: tuple[int, str] | None = None
    """Attempt and worker of its conversation, once that is complete and is graded."""
    held: bool = False
    overdue: bool = False
    push: str | None = None
    """What became of its push, once it has ended: `due`, `delivered`, `dead` or `stopped`; None without a webhook."""
    push_waits: bool = False
    """Whether its push is leased, or waits to be made again."""
    push_tries: int = 0
    result: dict[str, Any] | None = None
    """What must be delivered: attempt and worker of who ended it."""

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return self.status not in ("queued", "running")

    @property
    def shown(self) -> RolloutStatus:
        """What readers are shown."""
        return RolloutStatus.GRADING if self.kept is not None and not self.ended else RolloutStatus(self.status)

    @property
    def waits_for_group(self) -> bool:
        """Whether it needs no worker until its group is complete."""
        return self.held and self.batch.leader is not self

    @property
    def stopped(self) -> bool:
        """Whether it may not start any more, and is ended by somebody."""
        return self.batch.cancelled or (self.overdue and self.kept is None)

    def refusal(self, role: WorkerRole, *, condemned: bool) -> str | None:
        """Says why a worker does not get it; None where it does."""
        reasons = [
            ("ended", self.batch.cancelled or self.ended),
            ("taken", self.status == "running" or self.waits_for_group),
            ("condemned", condemned),
            ("expired", self.stopped),
            ("taken", self.crashes >= 2 and role is WorkerRole.SHARED),
            ("paused", self.batch.paused and role is WorkerRole.SHARED),
        ]
        return next((reason for reason, holds in reasons if holds), None)


@dataclass
class BatchModel:
    """One batch."""

    uids: list[str]
    rollouts: list[RolloutModel] = field(default_factory=list)
    size: int = 0
    """Bytes that it was counted with when it came."""
    graded: str = ""
    """`alone`, or `group` where all of it is graded as a whole."""
    run: str | None = None
    leased: bool = False
    unread: bool = False
    """Whether nobody has read it for as long as its lease lasts."""
    trunk: bytes | None = None
    """The result that its rollouts are forks of."""
    pushed: bool = False
    """Whether its results go to a webhook."""
    was_down: bool = False
    """Whether one of its pushes has found the receiver down."""
    paused: bool = False
    cancelled: bool = False
    held: list[RolloutModel] = field(default_factory=list)
    leader: RolloutModel | None = None

    @property
    def over(self) -> bool:
        """Whether all of it has ended."""
        return all(rollout.ended for rollout in self.rollouts)

    def hold(self, rollout: RolloutModel) -> None:
        """One of its rollouts waits for its group."""
        rollout.held = True
        self.held.append(rollout)
        self.ripen()

    def leave(self, rollout: RolloutModel) -> None:
        """One of its rollouts has ended; where it was cancelled as the leader, another one leads."""
        if rollout in self.held:
            self.held.remove(rollout)
        if self.leader is rollout and rollout.status == RolloutStatus.CANCELLED:
            self.leader = None
        self.ripen()

    def ripen(self) -> None:
        """The first that is held leads once all others are held or have ended."""
        gone = sum(rollout.ended for rollout in self.rollouts)
        if self.leader is None and self.held and len(self.held) + gone >= len(self.rollouts):
            self.leader = self.held[0]

    def late(self) -> list[RolloutModel]:
        """Lists what is delivered without a grade when the grader's deadline has passed."""
        if self.paused or (self.leader is not None and self.leader.status == "running"):
            return []
        return [r for r in self.rollouts if r.kept is not None and not r.ended and r.status != "running"]
