"""Termination: when is a rollout over, besides its limits?

A strategy looks at each sampled turn and decides whether it was the last. The built-in one, `task_completion`, ends
the rollout when the policy calls no tool. Others register under `rolloutpool.termination` and are chosen by the
rollout's `metadata.termination_strategy`:

    @TERMINATION.named("two_turns")
    def two_turns(turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
        return TerminationDecision(end=turn.turn == 2, append=({"role": "user", "content": "Go on"},))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rolloutpool_worker.conversation.branch import SampledTurn
from rolloutpool_worker.plugins import Registry


@dataclass(frozen=True)
class TerminationDecision:
    """Holds what a strategy decides after a turn."""

    end: bool
    """Whether the rollout is over."""
    append: tuple[dict[str, Any], ...] = ()
    """Messages that follow the turn and the results of its tools if the rollout goes on, e.g. a user turn."""


class TerminationStrategy(Protocol):
    """Decides after each turn. It must be a pure function of its arguments, because resumed rollouts call it again."""

    def __call__(self, turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
        """Decides whether the rollout is over.

        Args:
            turn: What the policy has just done; its tools have not run yet.
            messages: The transcript, this turn included.
        """
        ...


TERMINATION: Registry[TerminationStrategy] = Registry("rolloutpool.termination")


@TERMINATION.named("task_completion")
def task_completion(turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
    """Ends the rollout when the policy answers without calling a tool."""
    del messages
    return TerminationDecision(end=not turn.tool_calls)
