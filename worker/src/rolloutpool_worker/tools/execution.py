"""Runs the tool calls of a turn and makes a tool message of each.

1. The calls are counted. If they are more than the limit, none of them is run, and the rollout ends (`limits.py`).
2. Arguments that come as text are parsed as JSON (`arguments.py`), unless they are too large.
3. The tool is looked up by its name.
4. Its arguments are checked against its JSON schema. Protocol v1 skips this (`lenient`): its clients expect whatever
   Python makes of the arguments.
5. The tool runs, for a limited time: on the event loop, where it is watched (`watch.py`), or in a child process
   (`isolated.py`). The calls of one turn run at the same time, each in a task of its own; those of an environment's
   session run one after the other, in the order in which the policy made them.
6. The results come in the order of the calls. One that is too large is cut.

If a step for one call fails, its text ("Error: …") is the content of the tool message, and the policy may try again. A
tool can neither end the rollout nor keep it waiting for ever, whatever it raises. The result says which tools failed
(`tool_failed:NAME`), and the log has the traceback. Only the failure of an environment's session ends the rollout
(`EnvironmentFault`), and that of a tool where the rollout says so (`on_tool_error: fail`, `ToolFault`):

- `SystemExit` and `KeyboardInterrupt` would end the event loop if they left a task, so they are caught inside it.
- `CancelledError` may be the tool's own, or the rollout was cancelled (by the API, a drain or its deadline). The
  rollout was cancelled if its own task was asked to cancel (`Task.cancelling`), and only then does the error pass.
"""

import asyncio
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.errors import EnvironmentFault, ToolFault, TooManyToolCalls
from rolloutpool_common.process.metrics import TOOL_CALLS
from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_common.protocol.options import OnToolError
from rolloutpool_common.protocol.result import ToolTime
from rolloutpool_worker.plugin_errors import PluginError
from rolloutpool_worker.tools.arguments import PARSED_ON_LOOP, parse_arguments
from rolloutpool_worker.tools.base import FAILED, Tool, ToolAnswer, ToolContext, answer_call, timed_out
from rolloutpool_worker.tools.isolated import IsolatedTools
from rolloutpool_worker.tools.limits import ToolLimits, cut_result, shorten_fault, size_of
from rolloutpool_worker.tools.watch import ToolWatch

_Timed = tuple[ToolAnswer, float]
"""An answer, and how many seconds it took."""
LONGEST_NAME = 64
"""Characters of a called name that the times of tools show."""
UNKNOWN = "unknown"
"""Stands in metrics for names that no tool has."""
SESSION = "session"
"""Stands in metrics for the tools of an environment's session: a task may name them, so there may be any number."""


@dataclass(frozen=True)
class ToolHost:
    """What the tools of all rollouts of a worker process share: limits, watch and child processes."""

    limits: ToolLimits
    watch: ToolWatch
    isolated: IsolatedTools


class ToolRunner:
    """The tools that one rollout may call."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        lenient: bool,
        host: ToolHost,
        on_error: OnToolError = OnToolError.MESSAGE,
    ) -> None:
        """A runner for these tools."""
        self._tools = tools
        self._lenient = lenient
        self._host = host
        self._fails = on_error is OnToolError.FAIL
        self._limits = host.limits
        self._warnings: set[str] = set()
        self._times: list[ToolTime] = []

    @property
    def names(self) -> Collection[str]:
        """The tools that there are."""
        return self._tools.keys()

    def take_warnings(self) -> tuple[str, ...]:
        """Returns what the result should say of the tools that ran since the last time: who failed, who was greedy."""
        taken = tuple(sorted(self._warnings))
        self._warnings.clear()
        return taken

    def take_times(self) -> tuple[ToolTime, ...]:
        """Returns how long each call took that ran since the last time, in call order."""
        taken = tuple(self._times)
        self._times.clear()
        return taken

    async def run(
        self, calls: Sequence[ToolCall], contexts: Sequence[ToolContext], *, faults: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Runs the calls of one turn."""
        if len(calls) > self._limits.calls:
            raise TooManyToolCalls(
                f"turn {contexts[0].turn}: the policy made {len(calls)} tool calls, and at most {self._limits.calls} "
                "are run (ROLLOUTPOOL_MAX_TOOL_CALLS); none of them was run"
            )
        messages: list[dict[str, Any]] = []
        fault: ToolFault | None = None
        for call, (answer, seconds) in zip(calls, await self._answers(calls, contexts, faults or {}), strict=True):
            # The name is the policy's, so it may be anything.
            name, ok = call.function.name, not answer.text.startswith("Error:")
            self._times.append(ToolTime(name[:LONGEST_NAME], round(seconds * 1000, 1), ok=ok, error=answer.error))
            TOOL_CALLS.observe(seconds, self._label_of(name), "ok" if ok else "error")
            if answer.error is not None:
                self._warnings.add(f"tool_failed:{name}")
            if answer.raised is not None:
                answer.raised.log(f"tool {name}")
                fault = fault or ToolFault(f"tool {name} failed with {answer.raised}")
            if answer.cut:
                self._warnings.add(f"tool_result_cut:{name}")
            message = {"role": "tool", "content": answer.text, "tool_calls": None, "tool_call_id": call.id}
            if not self._lenient:
                # Some templates print the tool's name; protocol v1's messages have no such key.
                message["name"] = name
            messages.append(message)
        if self._fails and fault is not None:
            raise fault
        return messages

    def _label_of(self, name: str) -> str:
        """The name of a registered tool; one word for all others, so that no caller can make series."""
        tool = self._tools.get(name)
        if tool is None:
            return UNKNOWN
        return SESSION if tool.stateful else name

    async def _answers(
        self, calls: Sequence[ToolCall], contexts: Sequence[ToolContext], faults: Mapping[str, str]
    ) -> Sequence[_Timed]:
        # Each call has a task, a single one too. A tool that cancels the task in which it runs then ends its own call;
        # in the rollout's task that would look like a cancelled rollout.
        running: list[asyncio.Task[_Timed]] = []
        before: asyncio.Task[_Timed] | None = None
        for call, context in zip(calls, contexts, strict=True):
            tool = self._tools.get(call.function.name)
            stateful = tool is not None and tool.stateful
            after = before if stateful else None
            task = asyncio.create_task(self._timed(call, tool, context, faults.get(call.id), after))
            running.append(task)
            before = task if stateful else before
        if len(running) > 1:
            ended = await asyncio.gather(*running, return_exceptions=True)
        else:
            ended = [await _end_of(task) for task in running]
        # The first one is the cause: what follows it in the same session was not run.
        for end in ended:
            if isinstance(end, EnvironmentFault):
                raise end
        return [(_failed(PluginError.of(end)), 0.0) if isinstance(end, BaseException) else end for end in ended]

    async def _timed(
        self,
        call: ToolCall,
        tool: Tool | None,
        context: ToolContext,
        fault: str | None,
        after: "asyncio.Task[_Timed] | None",
    ) -> _Timed:
        if fault is not None:
            return ToolAnswer(f"Error: {fault}"), 0.0
        if after is not None:
            await asyncio.wait([after])
        start = time.perf_counter()
        try:
            answer = await self._answer(call, tool, context)
        except EnvironmentFault:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            answer = _failed(PluginError.of(error))
        return answer, time.perf_counter() - start

    async def _answer(self, call: ToolCall, tool: Tool | None, context: ToolContext) -> ToolAnswer:
        arguments, fault = await self._checked(call, tool)
        if isinstance(fault, PluginError):
            told = f"Error: Invalid arguments for {call.function.name}: the tool's own schema is broken"
            return ToolAnswer(told, error=fault.type, raised=fault)
        if tool is None or fault is not None:
            return ToolAnswer(cut_result(fault or "", self._limits.result).text)
        limits = self._limits
        if tool.isolated is not None:
            # The child cuts the result itself, so that it need not send gigabytes.
            return await self._host.isolated.call(
                tool, context, arguments, seconds=limits.seconds, result_bytes=limits.result
            )
        pending = answer_call(tool.name, tool.run, context, arguments)
        if tool.stateful:
            # A session limits its answers itself, and cuts them, because it compares them with what the policy has
            # read.
            return ToolAnswer(await self._host.watch.watched(tool.name, pending, self._warnings))
        limit = _TimeLimit(limits.seconds)
        try:
            text = await self._host.watch.watched(tool.name, pending, self._warnings, waits=limit.set)
        except asyncio.CancelledError:
            # The rollout may be cancelled as well, or the tool may do it to itself.
            if not limit.take_back():
                raise
            late = PluginError("TimeoutError", f"no answer within {limits.seconds:g} s", "")
            return ToolAnswer(timed_out(limits.seconds), error=late.type, raised=late)
        finally:
            limit.close()
        return ToolAnswer(*cut_result(text, limits.result))

    async def _checked(self, call: ToolCall, tool: Tool | None) -> tuple[Any, str | PluginError | None]:
        """Returns a call's arguments, and what the policy reads if there is something wrong with the call.

        A tool's own schema may be wrong instead, so that no call can be checked. Then its error is returned.
        """
        name, arguments = call.function.name, call.function.arguments
        size = len(arguments) if isinstance(arguments, str) else size_of(arguments, at_most=self._limits.arguments)
        if size > self._limits.arguments:
            return (
                None,
                f"Error: Invalid arguments for {name}: longer than {self._limits.arguments} characters; not run",
            )
        if isinstance(arguments, str):
            try:
                # The usual text at once, without a coroutine of its own.
                arguments = await parse_arguments(arguments) if size > PARSED_ON_LOOP else json.loads(arguments)
            except (ValueError, RecursionError) as error:
                return None, f"Error: Invalid JSON arguments: {shorten_fault(str(error))}"
        if tool is None:
            return None, f"Error: Unknown function '{name}'. Available: {list(self._tools)}"
        if self._lenient or (tool.plain_arguments is not None and tool.plain_arguments.fit(arguments)):
            return arguments, None
        # Checking large ones can take seconds.
        in_thread = size > PARSED_ON_LOOP
        fault = await asyncio.to_thread(_schema_fault, tool, arguments) if in_thread else _schema_fault(tool, arguments)
        if isinstance(fault, str):
            fault = f"Error: Invalid arguments for {name}: {shorten_fault(fault)}"
        return arguments, fault


class _TimeLimit:
    """How long a call may take. It is set when the tool waits for something: most tools never do."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False

    def set(self) -> None:
        """Begins; the task that runs is cancelled when the time is over."""
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def take_back(self) -> bool:
        """Takes back that it has cancelled the task; False where it has not, or something else has too."""
        return self._is_over and self._task is not None and self._task.uncancel() == 0

    def close(self) -> None:
        """Ends it, so that it cancels nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        if self._task is not None and not self._task.done():
            self._is_over = True
            self._task.cancel()


async def _end_of(task: "asyncio.Task[_Timed]") -> "_Timed | BaseException":
    """Returns what a task ended with; raises only where the task that waits is cancelled meanwhile."""
    me = asyncio.current_task()
    assert me is not None
    before = me.cancelling()
    try:
        end: _Timed | BaseException = await task
    except BaseException as error:
        end = error
    # Also where the tool caught the cancellation and returned something.
    if me.cancelling() > before:
        raise asyncio.CancelledError
    return end


def _failed(raised: PluginError) -> ToolAnswer:
    return ToolAnswer(FAILED, error=raised.type, raised=raised)


def _schema_fault(tool: Tool, arguments: Any) -> str | PluginError | None:
    try:
        error = next(iter(tool.validator.iter_errors(arguments)), None)
    except RecursionError:
        return "nested too deeply"
    except ArithmeticError:
        # The policy's error, and not the schema's: `multipleOf` divides, and no float holds an integer of 400 digits.
        return "a number is too large"
    except Exception as broken:
        # The schema is a plug-in's; on a broken one jsonschema raises errors of many kinds.
        return PluginError.of(broken)
    if error is None:
        return None
    where = ".".join(str(part) for part in error.absolute_path)
    return f"{where}: {error.message}" if where else str(error.message)
