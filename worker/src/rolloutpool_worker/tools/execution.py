"""Runs the tool calls of a turn and makes a tool message of each.

1. Arguments that come as text are parsed as JSON.
2. The tool is looked up by its name.
3. Its arguments are checked against its JSON schema. Protocol v1 skips this (`lenient`): its clients expect whatever
   Python makes of the arguments.
4. The tool runs, at most `timeout` seconds. The calls of one turn run at the same time.
5. The results come in the order of the calls.

If a step fails, its text ("Error: …") is the content of the tool message, and the policy may try again. A tool can
neither end the rollout nor keep it waiting for ever.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_worker.tools.base import Tool, ToolContext, ToolFailed

__all__ = ["ToolRunner"]

_log = logging.getLogger(__name__)


class ToolRunner:
    """The tools that one rollout may call."""

    def __init__(self, tools: Mapping[str, Tool], *, lenient: bool, timeout: float) -> None:
        """A runner for these tools.

        Args:
            tools: By the name that the policy calls them.
            lenient: Whether arguments are taken unchecked and messages lack the tool's name, as in protocol v1.
            timeout: Seconds that one call may take.
        """
        self._tools = tools
        self._lenient = lenient
        self._timeout = timeout

    async def run(self, calls: Sequence[ToolCall], contexts: Sequence[ToolContext]) -> list[dict[str, Any]]:
        """One tool message per call, in call order."""
        running = [self._text(call, ctx) for call, ctx in zip(calls, contexts, strict=True)]
        # Most turns make one call, which needs no task.
        texts = [await running[0]] if len(running) == 1 else await asyncio.gather(*running)
        messages = []
        for call, text in zip(calls, texts, strict=True):
            # Half of a surrogate pair is a string to Python, but it cannot be encoded as UTF-8.
            content = text.encode("utf-8", "backslashreplace").decode()
            message = {"role": "tool", "content": content, "tool_calls": None, "tool_call_id": call.id}
            if not self._lenient:
                # Some templates print the tool's name; protocol v1's messages have no such key.
                message["name"] = call.function.name
            messages.append(message)
        return messages

    async def _text(self, call: ToolCall, context: ToolContext) -> str:
        name, arguments = call.function.name, call.function.arguments
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                return f"Error: Invalid JSON arguments: {error}"
        tool = self._tools.get(name)
        if tool is None:
            return f"Error: Unknown function '{name}'. Available: {list(self._tools)}"
        if not self._lenient and (fault := _schema_fault(tool, arguments)):
            return f"Error: Invalid arguments for {name}: {fault}"
        return await self._call(tool, arguments, context)

    async def _call(self, tool: Tool, arguments: Any, context: ToolContext) -> str:
        name = tool.name
        limit = asyncio.timeout(self._timeout)
        try:
            try:
                pending = tool.run(context, **arguments)
            except TypeError as error:
                return f"Error: Invalid arguments for {name}: {error}"
            async with limit:
                return str(await pending)
        except ToolFailed as error:
            return f"Error: {error.message}"
        except Exception as error:
            if limit.expired():
                return f"Error: Tool execution timed out after {self._timeout:g} s"
            _log.warning("tool %s failed for rollout %s: %s", name, context.uid, type(error).__name__)
            return "Error: Tool execution failed"


def _schema_fault(tool: Tool, arguments: Any) -> str | None:
    try:
        error = next(iter(tool.validator.iter_errors(arguments)), None)
    except RecursionError:
        return "nested too deeply"
    except Exception as broken:
        # The schema is a plug-in's; on a broken one jsonschema raises errors of many kinds.
        return f"the tool's own schema is broken ({type(broken).__name__})"
    if error is None:
        return None
    where = ".".join(str(part) for part in error.absolute_path)
    return f"{where}: {error.message}" if where else str(error.message)
