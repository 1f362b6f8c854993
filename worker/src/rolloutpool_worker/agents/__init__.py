"""The agent loops.

- `tool_calls` says what an agent is and how to add one, and has the built-in loop: sample, run the tools, repeat.
- `termination` decides after each turn whether the rollout is over.
- `context_limit` shortens a history that has become too long.
"""

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_worker.agents.termination import TERMINATION, TerminationDecision
from rolloutpool_worker.agents.tool_calls import AGENTS, Agent
from rolloutpool_worker.conversation.conversation import Conversation

__all__ = ["AGENTS", "TERMINATION", "Agent", "Conversation", "FinishReason", "TerminationDecision"]
