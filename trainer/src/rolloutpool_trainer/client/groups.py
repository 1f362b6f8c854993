"""Groups of a batch, as a trainer takes them: whole groups as they end, and of each what can be trained.

1. `GroupCollector` knows from the batch's table how many rollouts each group has. With its last one, a group is
   finished.
2. `select` takes from a finished group what can be trained, and counts the rest by reason:
   - `infra:network_error` and the like: it failed, and not by the policy. It is no sample with reward 0.
   - `cancelled`, `expired`: it was ended.
   - `stale`: the pool has dropped it, because the weights that sampled it were too old.
   - `untrained`: the policy sampled nothing that is trained.
   - what the caller's own `drop` says, for example `stale`.
3. Failures of the infrastructure, and rollouts that expired, can be run again: `SelectedGroup.refillable`.
4. `SelectedGroup.judge` says whether the group as a whole can be used.

What trainers get are the `TrainableGroup`s of `sync_batch`, or those of `aio_batch`: selected groups that know their
client, so that they can be annotated.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from rolloutpool_common.outcomes import FailureKind, FinishReason, RolloutStatus
from rolloutpool_trainer.client.results import FinishedRollout

Drop = Callable[[FinishedRollout], str | None]
"""Says why a rollout shall not be trained; None keeps it."""


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group all of whose rollouts have ended, one way or another."""

    group: str | None
    """Its name; None for a rollout without a group."""
    rollouts: tuple[FinishedRollout, ...]
    """In the order of the batch."""


class GroupUse(StrEnum):
    """Says whether a group can be used; what it can't is counted under this word."""

    USABLE = "usable"
    """It is trained."""
    LACKING = "group"
    """Too few of its rollouts can be trained."""
    REFUSED = "refused"
    """The caller's `keep` does not want it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedGroup:
    """Holds what can be trained of a finished group."""

    name: str
    """`=` and its group, or `#` and the index of a rollout without one; unique in the batch."""
    group: str | None
    rollouts: tuple[FinishedRollout, ...]
    """Those that completed, or that the policy itself made fail."""
    dropped: dict[str, int] = field(default_factory=dict)
    """How many were left out, by reason."""
    refillable: tuple[FinishedRollout, ...] = ()
    """Those left out that may end differently if they are run again."""

    def judge(self, min_usable: int, keep: Callable[[Self], bool] | None) -> GroupUse:
        """Says whether it can be used.

        Args:
            min_usable: How many rollouts it must have; a group with none never has enough.
            keep: The caller's own condition; asked only about groups with enough.

        Raises:
            TypeError: `keep` said neither yes nor no, as a function does that forgets to return.
        """
        if len(self.rollouts) < max(min_usable, 1):
            return GroupUse.LACKING
        kept = True if keep is None else keep(self)
        if kept is None:
            raise TypeError("keep returned None; it must return True for a group to be trained, or False")
        return GroupUse.USABLE if kept else GroupUse.REFUSED


class GroupCollector:
    """Collects the results of a batch into its groups."""

    def __init__(self, names: Iterable[str | None]) -> None:
        """Makes a collector; `names` are the groups of the batch's rollouts, in their order."""
        self._missing = Counter(_key(index, name) for index, name in enumerate(names))
        self._ended: dict[Hashable, list[FinishedRollout]] = {}

    def take(self, result: FinishedRollout) -> FinishedGroup | None:
        """Adds a result; returns its group if that was the last one missing."""
        key = _key(result.index, result.group)
        ended = self._ended.setdefault(key, [])
        ended.append(result)
        if len(ended) < self._missing[key]:
            return None
        del self._ended[key]
        return FinishedGroup(result.group, tuple(sorted(ended, key=lambda rollout: rollout.index)))


def select(rollouts: Sequence[FinishedRollout], drop: Drop | None = None) -> SelectedGroup:
    """Takes from a group what can be trained.

    Args:
        rollouts: All of the group that have ended; at least one.
        drop: A further reason to leave one out; asked only about those that could be trained.
    """
    kept, refillable = [], []
    dropped: Counter[str] = Counter()
    for rollout in rollouts:
        reason = _reason(rollout) or (drop(rollout) if drop else None)
        if reason is None:
            kept.append(rollout)
            continue
        dropped[reason] += 1
        if reason.startswith(FailureKind.INFRA) or rollout.status is RolloutStatus.EXPIRED:
            refillable.append(rollout)
    group = rollouts[0].group
    name = f"#{rollouts[0].index}" if group is None else f"={group}"
    return SelectedGroup(
        name=name, group=group, rollouts=tuple(kept), dropped=dict(dropped), refillable=tuple(refillable)
    )


def _reason(rollout: FinishedRollout) -> str | None:
    if rollout.failure is not None and rollout.failure.kind is not FailureKind.POLICY:
        return f"{rollout.failure.kind}:{rollout.failure.category}"
    if rollout.finish_reason is FinishReason.STALE:
        return str(rollout.finish_reason)
    if rollout.status in (RolloutStatus.CANCELLED, RolloutStatus.EXPIRED):
        return str(rollout.status)
    # The search ends at the first token that is trained, which is nearly always the first of the response.
    return None if any(1 in sample.response_mask for sample in rollout.samples) else "untrained"


def _key(index: int, group: str | None) -> Hashable:
    # Without a group each rollout is one of its own; an index is no text, so it is no other group's name.
    return index if group is None else group
