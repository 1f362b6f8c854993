"""Tools as they travel: what a policy is told about each, in OpenAI's form."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from rolloutpool_common.protocol.answer import Answer


class ToolFunction(BaseModel):
    """Holds what the policy is told about a tool."""

    name: str = Field(min_length=1, max_length=256)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""


class ToolDefinition(BaseModel):
    """A tool in OpenAI's form."""

    type: Literal["function"] = "function"
    function: ToolFunction


class ToolsResponse(Answer):
    """`GET /tools` of protocol v1: the tools of all live workers."""

    tools: list[ToolDefinition]
