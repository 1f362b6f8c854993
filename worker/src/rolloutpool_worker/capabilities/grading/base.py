"""Says what a grader is, and how to add one.

A grader is a function of a rollout, as its result will be delivered, and of the options that the rollout gives it. It
returns a number, or a `Grade` with parts and rewards per token.

    @grader()
    def last_answer(rollout, options):
        return rollout.messages[-1].content == options["answer"]

A grader of groups gets the rollouts of a group whose conversations are complete, and returns as many grades:

    @grader(of_groups=True)
    def shortest(rollouts, options):
        least = min(rollout.response_tokens for rollout in rollouts)
        return [least / rollout.response_tokens for rollout in rollouts]

Put this into a module that `ROLLOUTPOOL_PLUGINS` names, or make it an entry point of `rolloutpool.graders`. A rollout
asks for it with `grader: {"name": "last_answer", "options": {"answer": "4"}}`.

A plain function runs in a child process with limits, because it would hold up all rollouts of its worker; the child
imports its module (`tools.isolated`). An `async` function runs in the worker, on an event loop of its own, unless it is
declared isolated; that suits graders which ask a server.

What it raises, and what becomes of it:

| raised | effect |
|---|---|
| `RequestFault` | the options are wrong; the rollout fails, and the grader is not asked again |
| anything else, no answer in time, or its process dies | it is asked again later, then the rollout fails as `infra` |

A grader that was asked may be asked again, by another worker, although it has answered: its worker died.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from rolloutpool_common.capabilities.grading.errors import GradeInvalid
from rolloutpool_common.capabilities.grading.wire import Grade
from rolloutpool_common.errors import RequestFault, RolloutPoolError
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.capabilities.grading.grades import checked_grades, write_grades, write_refusal
from rolloutpool_worker.plugins import PluginBroken, Registry
from rolloutpool_worker.tools import Isolated, Tool


class GraderAgain(RolloutPoolError):
    """The grader has failed, and is asked again later."""

    def __init__(self, message: str, delay_s: float) -> None:
        """`delay_s` is the time until then."""
        super().__init__(message)
        self.delay_s = delay_s


class GraderBusy(RolloutPoolError):
    """The grader's child processes have been busy for long; the rollout waits in the queue, and is no try."""


class HeldForGroup(RolloutPoolError):
    """The conversation is complete; the rollout waits, without a worker, until its group can be graded."""


@dataclass(frozen=True)
class Grader:
    """A function that says what a rollout, or each rollout of a group, is worth."""

    name: str
    function: Callable[[Any, Any], object]
    of_groups: bool = False
    isolated: Isolated | None = None
    """Whether it runs in child processes, and within which limits."""

    @cached_property
    def tool(self) -> Tool:
        """It as a tool, by which child processes find it. Raises `PluginBroken` where they could not."""
        definition = ToolDefinition(function=ToolFunction(name=f"grader {self.name}"))
        # Only for its place: what a child calls is `run`.
        return Tool(definition, cast(Any, self.function), self.isolated)

    async def ask(self, rollouts: Sequence[RolloutResult], options: Any) -> list[Grade]:
        """Calls the function with one rollout or those of a group; returns a grade for each. Whatever it raises passes.

        Raises:
            GradeInvalid: It returned something else.
        """
        answer = self.function(list(rollouts) if self.of_groups else rollouts[0], options)
        if inspect.isawaitable(answer):
            answer = await answer
        return checked_grades(answer, rollouts, of_groups=self.of_groups)

    async def run(self, context__: object, /, *, rollouts: Sequence[RolloutResult], options: Any) -> str:
        """Answers in a child process; returns what `grades.read_answer` reads."""
        del context__
        try:
            return write_grades(await self.ask(rollouts, options))
        except (GradeInvalid, RequestFault) as refused:
            return write_refusal(refused)


GRADERS: Registry[Grader] = Registry("rolloutpool.graders")


def grader(
    name: str | None = None, *, of_groups: bool = False, isolated: Isolated | None = None
) -> Callable[[Callable[[Any, Any], object]], Grader]:
    """Registers a function `(rollout, options)`, or `(rollouts, options)`, as a grader.

    Args:
        name: By which rollouts choose it; None takes the function's.
        of_groups: Whether it grades the rollouts of a group together.
        isolated: Limits, where it is to run in a child process. A function that is not `async` always does.

    Raises:
        NameTaken: Another grader has that name.
        PluginBroken: It is to run in a child process, and is inside another function; or it takes other arguments.
    """
    # `@grader` without brackets would put nothing into the registry.
    if callable(name):
        raise PluginBroken(f"grader {name.__name__}: write `@grader()`, with brackets")

    def register(function: Callable[[Any, Any], object]) -> Grader:
        what = "rollouts" if of_groups else "rollout"
        try:
            inspect.signature(function).bind(what, "options")
        except TypeError as error:
            raise PluginBroken(
                f"grader {name or function.__name__}: it is called as `({what}, options)`: {error}"
            ) from None
        except ValueError:  # a function in C need not say what it takes
            pass
        limits = isolated
        if limits is None and not inspect.iscoroutinefunction(function):
            limits = Isolated()
        made = Grader(name or function.__name__, function, of_groups, limits)
        # Now, so that a function that no child process could find is refused when its module is imported.
        _ = made.tool
        return GRADERS.register(made.name, made)

    return register
