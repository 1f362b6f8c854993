"""Termination: when is a rollout over, besides its limits?

A strategy looks at each sampled turn. The built-in one, `task_completion`, ends when the policy calls no tool. Others
register under `rolloutpool.termination` and are chosen by `metadata.termination_strategy`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rolloutpool_worker.conversation.conversation import SampledTurn
from rolloutpool_worker.plugins import Registry

__all__ = ["TERMINATION", "TerminationDecision", "TerminationStrategy", "task_completion"]


@dataclass(frozen=True)
class TerminationDecision:
    """What a strategy decides after a turn."""

    end: bool
    """Whether the rollout is over."""
    append: tuple[dict[str, Any], ...] = ()
    """Messages that follow the turn and the results of its tools if the rollout goes on, e.g. a user turn."""


class TerminationStrategy(Protocol):
    """Decides after each turn; must be a pure function of what it is given, because attempts replay it."""

    def __call__(self, turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
        """`messages` is the transcript including this turn."""
        ...


TERMINATION: Registry[TerminationStrategy] = Registry("rolloutpool.termination")


@TERMINATION.named("task_completion")
def task_completion(turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
    """Over when the policy answers without calling a tool."""
    del messages
    return TerminationDecision(end=not turn.tool_calls)
