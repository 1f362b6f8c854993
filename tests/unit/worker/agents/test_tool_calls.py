"""An agent and a termination strategy may be plug-ins, so what they are and return is looked at."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_worker.agents.termination import TERMINATION
from rolloutpool_worker.agents.tool_calls import Agent, begun, reason_of, tool_calls
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.history import AgentMisuse
from rolloutpool_worker.plugins import Registry

TALK = cast(Conversation, SimpleNamespace())


async def right(_: Any) -> str:
    return "stop"


async def silent(_: Any) -> None:
    """Returns nothing."""


async def wordy(_: Any) -> str:
    return "the secret answer"


async def alone() -> FinishReason:
    return FinishReason.STOP


def plain(_: Any) -> FinishReason:
    return FinishReason.STOP


async def test_an_agent_may_name_the_reason() -> None:
    assert reason_of("right", await begun("right", cast(Agent, right), TALK)) is FinishReason.STOP


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (silent, "agent mine returned a NoneType that is no FinishReason"),
        (wordy, "agent mine returned a str that is no FinishReason"),
        (alone, r"agent mine must be an async function of a conversation: alone\(\) takes 0"),
        (plain, "agent mine must be an async function of a conversation; it is none"),
    ],
)
async def test_an_agent_that_is_none_is_named(agent: Any, text: str) -> None:
    """The worker seemed to have failed, in a line of a library, and each rollout ran four times."""
    with pytest.raises(AgentMisuse, match=text) as caught:
        reason_of("mine", await begun("mine", agent, TALK))
    assert "secret" not in caught.value.message


async def test_a_strategy_that_decides_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Registry[Any] = Registry("rolloutpool.termination")
    own.register("mine", lambda turn, messages: True)
    monkeypatch.setattr("rolloutpool_worker.agents.tool_calls.TERMINATION", own)
    assert TERMINATION.get("mine") is None

    async def sample() -> Any:
        return SimpleNamespace(tool_calls=())

    spec = SimpleNamespace(metadata={"termination_strategy": "mine"}, context=None, max_tokens_total=9)
    talk = SimpleNamespace(acts_by_text=False, spec=spec, sample=sample, sampled_tokens=1, messages=[])
    with pytest.raises(AgentMisuse, match="strategy mine returned a bool, and no TerminationDecision"):
        await tool_calls(cast(Conversation, talk))
