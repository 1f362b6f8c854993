"""Runs the tool calls of a turn and makes a tool message of each.

1. The calls are counted. If they are more than the limit, none of them is run, and the rollout ends (`limits.py`).
2. Arguments that come as text are parsed as JSON, unless they are too large.
3. The tool is looked up by its name.
4. Its arguments are checked against its JSON schema. Protocol v1 skips this (`lenient`): its clients expect whatever
   Python makes of the arguments.
5. The tool runs, for a limited time. The calls of one turn run at the same time, each in a task of its own.
6. The results come in the order of the calls. One that is too large is cut.

If a step for one call fails, its text ("Error: …") is the content of the tool message, and the policy may try again. A
tool can neither end the rollout nor keep it waiting for ever, whatever it raises:

- `SystemExit` and `KeyboardInterrupt` would end the event loop if they left a task, so they are caught inside it.
- `CancelledError` may be the tool's own, or the rollout was cancelled (by the API, a drain or its deadline). The
  rollout was cancelled if its own task was asked to cancel (`Task.cancelling`), and only then does the error pass.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.errors import TooManyToolCalls
from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_worker.tools.base import Tool, ToolContext, ToolFailed
from rolloutpool_worker.tools.limits import ToolLimits, cut_result, shorten_fault, size_of

__all__ = ["ToolRunner"]

_log = logging.getLogger(__name__)

FAILED = "Error: Tool execution failed"
CHECKED_ON_LOOP = 16_000
"""Size of arguments; checking larger ones against a schema can take seconds, so a thread does it."""


class ToolRunner:
    """The tools that one rollout may call."""

    def __init__(self, tools: Mapping[str, Tool], *, lenient: bool, limits: ToolLimits) -> None:
        """A runner for these tools.

        Args:
            tools: By the name that the policy calls them.
            lenient: Whether arguments are taken unchecked and messages lack the tool's name, as in protocol v1.
            limits: What the calls of one turn may use.
        """
        self._tools = tools
        self._lenient = lenient
        self._limits = limits

    async def run(self, calls: Sequence[ToolCall], contexts: Sequence[ToolContext]) -> list[dict[str, Any]]:
        """Runs the calls of one turn.

        Args:
            calls: In the order in which the policy made them.
            contexts: What the tool of each call is told, in the same order.

        Returns:
            One tool message per call, in call order.

        Raises:
            TooManyToolCalls: There are more calls than the limit; no tool was run.
        """
        if len(calls) > self._limits.calls:
            raise TooManyToolCalls(
                f"turn {contexts[0].turn}: the policy made {len(calls)} tool calls, and at most {self._limits.calls} "
                "are run (ROLLOUTPOOL_MAX_TOOL_CALLS); none of them was run"
            )
        messages = []
        for call, text in zip(calls, await self._texts(calls, contexts), strict=True):
            content = cut_result(text, self._limits.result)
            message = {"role": "tool", "content": content, "tool_calls": None, "tool_call_id": call.id}
            if not self._lenient:
                # Some templates print the tool's name; protocol v1's messages have no such key.
                message["name"] = call.function.name
            messages.append(message)
        return messages

    async def _texts(self, calls: Sequence[ToolCall], contexts: Sequence[ToolContext]) -> list[str]:
        # Each call has a task, a single one too. A tool that cancels the task in which it runs then ends its own call;
        # in the rollout's task that would look like a cancelled rollout. If the rollout is cancelled, `gather` raises
        # in any case, also where a tool caught the cancellation and returned something.
        running = (self._text(call, context) for call, context in zip(calls, contexts, strict=True))
        texts = await asyncio.gather(*running, return_exceptions=True)
        return [FAILED if isinstance(text, BaseException) else text for text in texts]

    async def _text(self, call: ToolCall, context: ToolContext) -> str:
        name, arguments = call.function.name, call.function.arguments
        size = size_of(arguments, at_most=self._limits.arguments)
        if size > self._limits.arguments:
            return f"Error: Invalid arguments for {name}: longer than {self._limits.arguments} characters; not run"
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                return f"Error: Invalid JSON arguments: {shorten_fault(str(error))}"
        tool = self._tools.get(name)
        if tool is None:
            return f"Error: Unknown function '{name}'. Available: {list(self._tools)}"
        if not self._lenient:
            in_thread = size > CHECKED_ON_LOOP
            fault = (
                await asyncio.to_thread(_schema_fault, tool, arguments) if in_thread else _schema_fault(tool, arguments)
            )
            if fault:
                return f"Error: Invalid arguments for {name}: {shorten_fault(fault)}"
        return await self._call(tool, arguments, context)

    async def _call(self, tool: Tool, arguments: Any, context: ToolContext) -> str:
        name = tool.name
        task = asyncio.current_task()
        assert task is not None
        limit = asyncio.timeout(self._limits.seconds)
        try:
            try:
                # Only the call, which binds the arguments; an async tool runs at the `await`. So a TypeError here is
                # about the arguments, and one below is the tool's own defect.
                pending = tool.run(context, **arguments)
            except TypeError as error:
                return f"Error: Invalid arguments for {name}: {shorten_fault(str(error))}"
            async with limit:
                return str(await pending)
        except ToolFailed as error:
            return f"Error: {error.message}"
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise
            # Asked of the limit, because a tool may raise a TimeoutError of its own.
            if limit.expired():
                return f"Error: Tool execution timed out after {self._limits.seconds:g} s"
            # Only the type: the text of a plug-in's error could quote what the rollout says.
            _log.warning("tool %s failed for rollout %s: %s", name, context.uid, type(error).__name__)
            return FAILED


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
