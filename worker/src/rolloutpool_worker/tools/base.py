"""What a tool is, and how to add one.

A tool is an async function of a `ToolContext` and its arguments as keywords. It returns text, or a value whose `str()`
is the text. What it raises becomes a tool message that the policy reads; it never ends the rollout.

    @tool("double", "Doubles a number", {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]})
    async def double(context: ToolContext, x: float) -> object:
        return 2 * x

Put this into a module that `ROLLOUTPOOL_PLUGINS` names, or make it an entry point of `rolloutpool.tools`.
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
    """Raised by a tool that refuses; its message is what the policy reads."""


@dataclass(frozen=True)
class ToolContext:
    """The call that a tool answers."""

    uid: str
    """The pool's name of the rollout."""
    rollout_id: str
    """The trainer's name of the rollout."""
    turn: int
    """The turn in which the policy called the tool, from 1."""
    call_id: str
    """The policy's name of the call."""
    metadata: dict[str, Any]
    """The rollout's, as it was submitted."""

    @property
    def idempotency_key(self) -> str:
        """A key that is the same when this very call is repeated: after a crash a tool may run twice."""
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
        """The definition as a dict, for templates."""
        return self.definition.model_dump()

    @cached_property
    def validator(self) -> Draft202012Validator:
        """The validator of its arguments."""
        return Draft202012Validator(self.definition.function.parameters)


TOOLS: Registry[Tool] = Registry("rolloutpool.tools")


def tool(name: str, description: str, parameters: dict[str, Any]) -> Callable[[Callable[..., Awaitable[object]]], Tool]:
    """Registers an async function `(context, **arguments)` as a tool.

    Args:
        name: What the policy calls it.
        description: What the policy is told about it.
        parameters: JSON schema of the arguments.
    """

    def register(run: Callable[..., Awaitable[object]]) -> Tool:
        definition = ToolDefinition(function=ToolFunction(name=name, description=description, parameters=parameters))
        return TOOLS.register(name, Tool(definition, run))

    return register
