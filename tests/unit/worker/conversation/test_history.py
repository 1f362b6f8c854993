"""The transcript, its bytes, and which of its messages are rendered together."""

from typing import Any

import orjson
import pytest

from rolloutpool_worker.conversation.history import AgentMisuse, History, normal_form

USER = {"role": "user", "content": "Calculate 15 + 23"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "content": "38", "tool_call_id": "c1"}


def sent(history: History) -> Any:
    return orjson.loads(history.wire.body(b"]}").data)["messages"]


def test_messages_that_came_to_nothing_are_taken_out_again() -> None:
    history = History([USER, CALL])
    history.append([RESULT])
    history.cut(2)
    assert sent(history) == history.messages == [USER, CALL]


def test_what_follows_a_turn_is_rendered_together_with_the_names_of_the_tools() -> None:
    history = History([USER, CALL, RESULT, USER])
    assert history.since_last_turn() == [{**RESULT, "name": "add"}, USER]
    assert history.through_last_turn() == [USER, CALL]
    named = {**RESULT, "name": "mine"}
    assert History([USER, CALL, named]).since_last_turn() == [named]
    unknown = {**RESULT, "tool_call_id": "c2"}
    assert History([USER, CALL, unknown]).since_last_turn() == [unknown]


def test_an_agent_s_messages_are_put_into_normal_form() -> None:
    (message,) = normal_form([{"content": "x", "role": "user", "name": "n"}])
    assert list(message) == ["role", "content", "tool_calls", "tool_call_id", "name"]
    with pytest.raises(AgentMisuse, match=r"not a message: messages\[0\].role: Invalid role") as caught:
        normal_form([{"role": "robot", "content": "secret"}])
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("content", ["half a \udcff", "\ud800"])
def test_a_message_that_cannot_be_json_is_refused_before_it_is_part_of_the_transcript(content: str) -> None:
    """Neither a result that holds it nor its failure could be written, and the rollout ran eight times for nothing."""
    with pytest.raises(AgentMisuse, match=r"messages\[1\] cannot be JSON: .*surrogates not allowed"):
        normal_form([USER, {"role": "user", "content": content}])
