"""What a tool is. Register one with `@tool(...)` in a plug-in module, or as an entry point of `rolloutpool.tools`.

A tool is an async function of its arguments (as keywords) and a `ToolContext`; it returns text, or a value whose
`str()` is the text. What it raises becomes a tool message, never a crash.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.plugins import Registry

__all__ = ["TOOLS", "Tool", "ToolContext", "ToolFailed", "tool"]


class ToolFailed(RolloutPoolError):
    """The tool refuses; its message is what the policy reads."""


@dataclass(frozen=True)
class ToolContext:
    """For whom a tool runs."""

    uid: str
    rollout_id: str
    turn: int
    call_id: str
    metadata: dict[str, Any]

    @property
    def idempotency_key(self) -> str:
        """The same for each repetition of this very call: a crash may make a tool run twice."""
        return f"{self.uid}/{self.turn}/{self.call_id}"


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call."""

    definition: ToolDefinition
    run: Callable[..., Awaitable[object]]
    """Called as `run(context, **arguments)`."""

    @property
    def name(self) -> str:
        """Its name in a tool call."""
        return self.definition.function.name

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The definition as templates are given it."""
        return self.definition.model_dump()

    @cached_property
    def validator(self) -> Draft202012Validator:
        """Checks arguments against the schema."""
        return Draft202012Validator(self.definition.function.parameters)


TOOLS: Registry[Tool] = Registry("rolloutpool.tools")


def tool(name: str, description: str, parameters: dict[str, Any]) -> Callable[[Callable[..., Awaitable[object]]], Tool]:
    """Registers an async function `(context, **arguments)`; `parameters` is the JSON schema of the arguments."""

    def register(run: Callable[..., Awaitable[object]]) -> Tool:
        definition = ToolDefinition(function=ToolFunction(name=name, description=description, parameters=parameters))
        return TOOLS.register(name, Tool(definition, run))

    return register
