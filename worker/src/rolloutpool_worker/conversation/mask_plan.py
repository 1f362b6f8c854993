"""Which `response_mask` a turn is asked with, and what the trainer's reply teaches about it.

Two lengths exist, and they differ exactly where a trainer that renders history again gets other ids than were
sampled. `exact` comes from the ledger, `rerender` from the difference of two plain renders. A trainer's kind is
declared by it, or learned from an echo, and held for the rest of the batch. A mask that was accepted and that the echo
then disproves ends the rollout: the trainer's session is wrong, and nobody else would see it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cachetools import LRUCache

from rolloutpool_common.errors import MaskDisproved, MaskImpossible, TemplateRefusedTurn
from rolloutpool_common.protocol.options import MaskMode, RolloutSpec
from rolloutpool_common.tokens.comparison import EchoKind

__all__ = ["MaskPlan", "TrainerKind", "TrainerKinds", "check_accepted", "impossible", "infer_kind", "plan"]

REMEMBERED = 4096
"""Batches whose trainer's kind is remembered in a process."""


class TrainerKind(StrEnum):
    """What a trainer does with the ids that it sampled."""

    UNKNOWN = "unknown"
    KEEPS_IDS = "keeps_ids"
    """It continues them: the next prompt begins with prompt + sampled ids."""
    RERENDERS = "rerenders"
    """It renders all messages again each turn."""


@dataclass(frozen=True)
class MaskPlan:
    """The lengths to try, in order: a second one only where the first may be refused rightly."""

    lengths: Sequence[int]
    exact: int
    rerender: int | None
    """None where it was not needed or the template refuses."""

    def mask(self, attempt: int) -> list[int] | None:
        """The mask on the wire: zeros, or null where nothing was put in between."""
        return [0] * self.lengths[attempt] or None


def plan(mode: MaskMode, kind: TrainerKind, exact: int, rerender: int | None, turn: int) -> MaskPlan:
    """What to send on a turn from 2 on, where the trainer may render history again.

    `rerender` is None where the template refuses the history. Raises `MaskImpossible` or `TemplateRefusedTurn` where
    only `rerender` would do and there is none.
    """
    if mode is MaskMode.RERENDER or kind is TrainerKind.RERENDERS:
        if rerender is None:
            raise TemplateRefusedTurn(f"turn {turn}: the template cannot render the history again, so nothing to count")
        if rerender < 0:
            raise impossible(rerender, turn)
        return MaskPlan((rerender,), exact, rerender)
    if rerender is None or rerender < 0 or rerender == exact:
        return MaskPlan((exact,), exact, rerender)
    return MaskPlan((rerender, exact), exact, rerender)


def impossible(rerender: int, turn: int) -> MaskImpossible:
    """For a negative count."""
    return MaskImpossible(f"turn {turn}: {-rerender} tokens fewer: {MaskImpossible.__doc__}")


def infer_kind(kind: TrainerKind, plan: MaskPlan, echo: EchoKind) -> TrainerKind:
    """The trainer's kind after an echo that its mask did not contradict."""
    if echo is EchoKind.FORK:
        return TrainerKind.RERENDERS
    # A tail of its own may come from either kind: both spell out control tokens that a tool has typed.
    if echo is EchoKind.EQUAL and plan.rerender is not None and plan.rerender != plan.exact:
        return TrainerKind.KEEPS_IDS
    return kind


def check_accepted(plan: MaskPlan, sent: int, new: int, turn: int) -> None:
    """Raises `MaskDisproved` when the echoed prompt has another number of `new` tokens than were `sent` as such."""
    if new != sent:
        mode = MaskMode.RERENDER if new == plan.rerender and new >= 0 else MaskMode.EXACT
        raise MaskDisproved(
            f"turn {turn}: a mask of {sent} was accepted, but this trainer's prompt has {new} new tokens: it does not "
            f"check masks. mask_mode {mode} sends what it counts, or what is true, and holds it against no echo"
        )


class TrainerKinds:
    """What this process has learned of its trainers, by batch and endpoint."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], TrainerKind] = LRUCache(REMEMBERED)

    def of(self, spec: RolloutSpec, batch_id: str) -> TrainerKind:
        """The kind of the trainer that this rollout calls."""
        return self._known.get((batch_id, spec.server_url), TrainerKind.UNKNOWN)

    def learned(self, spec: RolloutSpec, batch_id: str, kind: TrainerKind) -> None:
        """Remembers it for the batch's other rollouts."""
        if kind is not TrainerKind.UNKNOWN:
            self._known[batch_id, spec.server_url] = kind
