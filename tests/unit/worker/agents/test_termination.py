"""The built-in strategy: a turn without tool calls ends the rollout."""

import pytest

from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_worker.agents.termination import TERMINATION, TerminationDecision, task_completion
from rolloutpool_worker.conversation.conversation import SampledTurn

CALL = ToolCall.model_validate({"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}})


@pytest.mark.parametrize(("calls", "ends"), [([], True), ([CALL], False)])
def test_a_turn_without_calls_ends_the_rollout(calls: list[ToolCall], ends: bool) -> None:
    turn = SampledTurn(turn=1, message={"role": "assistant"}, tool_calls=calls, finish_reason="stop", sampled=1)
    assert task_completion(turn, []) == TerminationDecision(end=ends)


def test_it_is_found_by_its_name() -> None:
    assert TERMINATION.get("task_completion") is task_completion
