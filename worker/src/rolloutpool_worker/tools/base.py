"""Says what a tool is, and how to add one.

A tool is an async function of a `ToolContext` and its arguments as keywords. It returns text, parts of text, or a value
whose `str()` is the text. What it raises becomes a tool message that the policy reads, and so does a part that is no
text, such as an image; neither ends the rollout.

    @tool()
    async def double(context: ToolContext, x: float) -> object:
        '''Doubles a number.'''
        return 2 * x

Name, description and schema come from the function (`schema.py`), as far as they are not given:

    @tool("double", "Doubles a number", {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]})

Put this into a module that `ROLLOUTPOOL_PLUGINS` names, or make it an entry point of `rolloutpool.tools`.

It runs on the event loop of its worker, beside the other rollouts. A tool that computes for long, takes much memory or
may crash is declared isolated; each call then runs in a child process with limits (`isolated.py`):

    @tool("run_code", "Runs Python code", CODE, isolated=Isolated(memory_mb=256, seconds=5))
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.content import content_fault, joined_text, looks_like_parts
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.plugin_errors import PluginError
from rolloutpool_worker.plugins import PluginBroken, Registry
from rolloutpool_worker.tools.limits import shorten_fault
from rolloutpool_worker.tools.plain_arguments import PlainArguments
from rolloutpool_worker.tools.schema import ArgumentsInvalid, read_signature

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

FAILED = "Error: Tool execution failed"
"""What the policy reads of an error whose text is not meant for it."""


class ToolFailed(RolloutPoolError):
    """Raised by a tool that refuses; its message is what the policy reads."""


@dataclass(slots=True)
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
    place: int = 0
    """Which of the turn's calls it is, from 0."""

    @property
    def idempotency_key(self) -> str:
        """A key that is the same when this very call is repeated: after a crash a tool may run twice."""
        return f"{self.uid}/{self.turn}/{self.call_id}"


@dataclass(slots=True)
class ToolAnswer:
    """Holds what became of one call."""

    text: str
    """What the policy reads."""
    cut: bool = False
    """Whether it is only the beginning of the result."""
    error: str | None = None
    """What ended the call without a result, in a word: the type of an error, a signal; None where the tool answered or
    refused."""
    raised: PluginError | None = None
    """The tool's own error, if there was one. The end of an isolated tool's process is none: what a policy wrote can
    cause it."""


@dataclass(frozen=True)
class Isolated:
    """The limits of a tool whose calls run in child processes."""

    memory_mb: int = 512
    """Of a child process: Python takes about 30 MB of it, and the tool's module what it imports."""
    seconds: float | None = None
    """Longest wait for one call, if that is shorter than ROLLOUTPOOL_TOOL_TIMEOUT."""


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call."""

    definition: ToolDefinition
    run: Callable[..., Awaitable[object]]
    """Called as `run(context, **arguments)`."""
    isolated: Isolated | None = None
    """Whether each call runs in a child process; `run` is then a function of a module, which the child imports."""
    stateful: bool = False
    """Whether it belongs to a session of an environment. Such calls are made one after the other, and the session
    limits their time itself, because it is in doubt when that is over."""

    def __post_init__(self) -> None:
        """Refuses an isolated tool that no child process could find, because its function is inside another one."""
        if self.isolated and "<" in self.run.__qualname__:
            raise PluginBroken(f"tool {self.name}: {self.run.__qualname__} must be a function of a module")

    @cached_property
    def name(self) -> str:
        """Its name in a tool call."""
        return self.definition.function.name

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The definition as a dict, for templates."""
        return self.definition.model_dump()

    @cached_property
    def plain_arguments(self) -> PlainArguments | None:
        """By which most arguments are seen to fit, without the validator; None where the schema is not plain."""
        return PlainArguments.of(self.definition.function.parameters)

    @cached_property
    def validator(self) -> "Draft202012Validator":
        """The validator of its arguments."""
        # Here, because it is a quarter of what the child process of an isolated tool would import.
        from jsonschema import Draft202012Validator

        return Draft202012Validator(self.definition.function.parameters)


TOOLS: Registry[Tool] = Registry("rolloutpool.tools")


def tool(
    name: str | None = None,
    description: str | None = None,
    parameters: dict[str, Any] | None = None,
    *,
    isolated: Isolated | None = None,
) -> Callable[[Callable[..., Awaitable[object]]], Tool]:
    """Registers an async function `(context, **arguments)` as a tool.

    Args:
        name: What the policy calls it; None takes the function's.
        description: What the policy is told about it; None takes the docstring up to its first section.
        parameters: JSON schema of the arguments; None makes it of the type hints. The function then gets values of
            those types, and with a schema the arguments as they are in JSON.
        isolated: Limits, where each call is to run in a child process.

    Raises:
        NameTaken: Another tool has that name.
        PluginBroken: It is no async function, its arguments cannot be described, or an isolated tool's function is
            inside another one.
    """
    # `@tool` without brackets would put nothing into the registry, and no call would ever say so.
    if callable(name):
        raise PluginBroken(f"tool {name.__name__}: write `@tool()`, with brackets")

    def register(run: Callable[..., Awaitable[object]]) -> Tool:
        # A plain `def` would fail at each call, unless it hands on what an async function has returned.
        if inspect.isfunction(run) and run.__name__ != "<lambda>" and not _answers_later(run):
            raise PluginBroken(
                f"tool {run.__name__}: write `async def {run.__name__}`; what blocks belongs into "
                "`asyncio.to_thread`, or is declared `isolated`"
            )
        called, told, schema, function = name, description, parameters, run
        if called is None or told is None or schema is None:
            signature = read_signature(run)
            called = signature.name if called is None else called
            told = signature.description if told is None else told
            if schema is None:
                schema, function = signature.parameters(), signature.typed(run)
        definition = ToolDefinition(function=ToolFunction(name=called, description=told, parameters=schema))
        return TOOLS.register(called, Tool(definition, function, isolated))

    return register


def _answers_later(run: Callable[..., object]) -> bool:
    """Whether a function is async, wraps one, or says that it returns an awaitable."""
    returns = run.__annotations__.get("return")
    said = returns if isinstance(returns, str) else getattr(returns, "__qualname__", "") or str(returns)
    return inspect.iscoroutinefunction(inspect.unwrap(run)) or any(
        word in said for word in ("Awaitable", "Coroutine", "Future", "Task")
    )


async def answer_call(name: str, run: Callable[..., Awaitable[object]], context: ToolContext, arguments: Any) -> str:
    """Runs a tool's function once; returns the text of its result, or why it refused. Whatever it raises passes."""
    try:
        # Only the call, which binds the arguments; an async tool runs at the `await`. So a TypeError here is about the
        # arguments, and one below is the tool's own defect.
        pending = run(context, **arguments)
    except TypeError as error:
        return f"Error: Invalid arguments for {name}: {shorten_fault(str(error))}"
    try:
        return _text_of(await pending)
    except ToolFailed as error:
        return f"Error: {error.message}"
    except ArgumentsInvalid as error:
        return f"Error: Invalid arguments for {name}: {shorten_fault(str(error))}"


def _text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    parts = [value] if isinstance(value, Mapping) else value
    if not looks_like_parts(parts):
        return str(value)
    assert isinstance(parts, list | tuple)
    if (fault := content_fault(parts)) is not None:
        raise ToolFailed(f"the tool returned {fault}")
    return joined_text(parts)


def timed_out(seconds: float) -> str:
    """Returns what the policy reads of a call that took longer than `seconds`."""
    return f"Error: Tool execution timed out after {seconds:g} s"
