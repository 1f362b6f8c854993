"""Chat messages as they travel.

Every message that leaves the pool is in normal form: the keys role, content, tool_calls, tool_call_id in this order,
null if absent, and then the other keys that it came with. The arguments of a tool call keep their type.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction

# Plug-ins written for 0.1 import the two from here.
__all__ = ["CALL_FAULTS", "ROLES", "FunctionCall", "Message", "ToolCall", "ToolDefinition", "ToolFunction", "text_of"]

CALL_FAULTS = "tool_call_faults"
"""The key of an assistant message that says which of its calls cannot be run, and why: an object, by the calls' ids.
Only messages that the pool has parsed itself can have it."""
ROLES = ("assistant", "function", "system", "tool", "user")


class FunctionCall(BaseModel):
    """The function a policy wants to call."""

    name: str = Field(min_length=1, max_length=256)
    arguments: str | dict[str, Any]
    """JSON text or an object; it is sent on as it came."""


class ToolCall(BaseModel):
    """One tool call inside an assistant message. Unknown keys are dropped."""

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """One chat message. Unknown keys (name, reasoning_content, vendor fields) are kept and sent on."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = Field(default=None, max_length=256)

    @field_validator("role")
    @classmethod
    def _known_role(cls, role: str) -> str:
        if role not in ROLES:
            raise ValueError(f"Invalid role '{role}'. Must be one of: {list(ROLES)}")
        return role

    def wire(self) -> dict[str, Any]:
        """Write this message in normal form."""
        return self.model_dump()


def text_of(message: Mapping[str, Any]) -> str:
    """Returns what a message says as text; of a list of parts, their texts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content or ""
