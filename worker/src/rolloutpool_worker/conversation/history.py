"""The messages of a conversation, and their bytes as they go into each request."""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.errors import WorkerFault
from rolloutpool_common.outcomes import Boundary
from rolloutpool_common.protocol.messages import MessagesInvalid, json_messages
from rolloutpool_worker.policy.body import MessageBytes


class AgentMisuse(WorkerFault):
    """The agent asked the conversation for something that cannot be."""

    boundary = Boundary.AGENT
    retryable = False


class History:
    """The transcript so far. Each message is written as JSON once, when it is appended."""

    def __init__(self, messages: Sequence[dict[str, Any]]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.wire = MessageBytes()
        # How many messages there are up to the policy's last one.
        self._turn_end = 0
        self.append(messages)

    def append(self, messages: Sequence[dict[str, Any]]) -> None:
        """Adds messages to the end of the transcript, and to the bytes that go out. They must be in normal form."""
        for message in messages:
            self.messages.append(message)
            if message["role"] == "assistant":
                self._turn_end = len(self.messages)
        self.wire.append(messages)

    def replace(self, messages: Sequence[dict[str, Any]]) -> None:
        """Makes these the whole history. The list itself stays, because an agent may hold it."""
        self.messages.clear()
        self._turn_end = 0
        self.wire = MessageBytes()
        self.append(messages)

    def cut(self, length: int) -> None:
        """Takes all messages behind the first `length` out again."""
        if length < len(self.messages):
            self.replace(self.messages[:length])

    def since_last_turn(self) -> list[dict[str, Any]]:
        """All messages after the policy's last one; tool messages with the names of their tools."""
        return self._with_tool_names(self.messages[self._turn_end :])

    def through_last_turn(self) -> list[dict[str, Any]]:
        """All messages up to the policy's last one, that one included; none where it has written none."""
        return self.messages[: self._turn_end]

    def _with_tool_names(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not any(m["role"] == "tool" and "name" not in m for m in messages):
            return messages
        # Some templates print the name of the tool that was called; protocol v1's messages do not have it.
        # The last message with calls is the one that these tool messages answer.
        calls: list[dict[str, Any]] = next(
            (m["tool_calls"] for m in reversed(self.messages) if m.get("tool_calls")), []
        )
        names = {call["id"]: call["function"]["name"] for call in calls}
        return [
            {**m, "name": names[m["tool_call_id"]]}
            if m["role"] == "tool" and "name" not in m and m.get("tool_call_id") in names
            else m
            for m in messages
        ]


def normal_form(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Brings an agent's messages into the form in which they are journaled, sent and rendered."""
    try:
        return json_messages(messages)
    except MessagesInvalid as error:
        raise AgentMisuse(f"the agent gave something that is not a message: {error}") from None
