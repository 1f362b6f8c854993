"""Says what an environment says of a session that it has opened or restored, checked field by field.

An environment is a plug-in, so it may return anything. What the pool cannot use is named with its field, and is the
environment's fault: the same would come again, so the rollout is not tried again.

A tool may be a dict in OpenAI's form, `{"type": "function", "function": {"name": …}}`.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_worker.environments.base import OpenedSession

MOST_TOOLS = 256
"""Definitions of one session; all of them are part of the prompt."""
MOST_TOOLS_BYTES = 2**20
"""The same definitions as JSON; they go into each request for a turn."""


class OpeningInvalid(ValueError):
    """A field of what was returned cannot be used."""


@dataclass(frozen=True)
class CheckedOpening:
    """Holds what a session begins with."""

    messages: list[dict[str, Any]]
    tools: list[ToolDefinition]
    once: frozenset[str]


def checked_opening(opened: OpenedSession) -> CheckedOpening:
    """Checks a session that was opened."""
    for name in ("messages", "tools"):
        if not isinstance(getattr(opened, name), list | tuple):
            raise OpeningInvalid(f"{name} is no list but {type(getattr(opened, name)).__name__}")
    for place, message in enumerate(opened.messages):
        if not isinstance(message, Mapping):
            raise OpeningInvalid(f"messages[{place}] is no dict but {type(message).__name__}")
    if len(opened.tools) > MOST_TOOLS:
        raise OpeningInvalid(f"it has {len(opened.tools)} tools, at most {MOST_TOOLS} are shown")
    tools = [_definition(place, tool) for place, tool in enumerate(opened.tools)]
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise OpeningInvalid("two of its tools have one name")
    once: object = opened.once
    if not isinstance(once, Set | list | tuple) or not all(isinstance(name, str) for name in once):
        raise OpeningInvalid("once is no set of names")
    if sum(_size(place, tool) for place, tool in enumerate(tools)) > MOST_TOOLS_BYTES:
        raise OpeningInvalid(f"its tools take more than {MOST_TOOLS_BYTES:,} bytes")
    return CheckedOpening([dict(message) for message in opened.messages], tools, frozenset(once))


def _definition(place: int, tool: object) -> ToolDefinition:
    if isinstance(tool, ToolDefinition):
        return tool
    if not isinstance(tool, Mapping):
        raise OpeningInvalid(f"tools[{place}] is no ToolDefinition but {type(tool).__name__}")
    try:
        return ToolDefinition.model_validate(dict(tool))
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        raise OpeningInvalid(f"tools[{place}].{'.'.join(map(str, fault['loc']))}: {fault['msg'][:200]}") from None


def _size(place: int, tool: ToolDefinition) -> int:
    try:
        return len(orjson.dumps(tool.model_dump()))
    # A definition may be made without pydantic's checks.
    except Exception as error:
        raise OpeningInvalid(f"tools[{place}] cannot be written as JSON ({type(error).__name__})") from None
