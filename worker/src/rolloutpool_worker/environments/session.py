"""The life of one rollout's session in one attempt: opened, asked in order, scored, closed.

    life = SessionLife("counter", COUNTER, choice, uid, attempt, host)
    await life.open()                       # life.messages and life.tools
    answer = await life.call("add_one", {}, place=0)
    facts = await life.take_facts()         # for the journal, with what the policy has read
    score = await life.score(transcript)
    await life.close()                      # always, more than once is harmless

1. One thing at a time: a session gets its calls in the order in which the policy made them, because the answers may
   depend on that order.
2. Each of these is bounded in time. A session that does not answer in time is in doubt: the call may have been done or
   not. So the rollout fails as `infra`, and the next attempt gets a session of its own. Only a `stateless` environment
   has nothing to lose; there the policy reads that the time was over.
3. After a failure the session is broken, and gets no further calls.
4. What an environment says is cut to the same length as a tool's result, and must be text, numbers and JSON.
"""

import asyncio
import base64
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from rolloutpool_common.errors import EnvironmentFault, EnvironmentLost, RequestFault
from rolloutpool_common.process.metrics import ENVIRONMENT_CALLS
from rolloutpool_common.protocol.content import content_fault
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentChoice, EnvironmentFacts, EnvironmentStep
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_worker.environments.base import Environment, EnvironmentFull, OpenedSession, SessionScore, StepAnswer
from rolloutpool_worker.environments.host import EnvironmentHost, SessionTicket
from rolloutpool_worker.environments.opened import OpeningInvalid, checked_opening
from rolloutpool_worker.plugin_errors import PluginError
from rolloutpool_worker.tools import Tool, ToolContext, ToolFailed
from rolloutpool_worker.tools.base import timed_out
from rolloutpool_worker.tools.limits import cut_result

T = TypeVar("T")
MOST_SNAPSHOT_BYTES = 2**20
"""Each one is written to the journal, with each answer."""
MOST_INFO_BYTES = 64 * 1024
"""Of what an answer says beside its text."""


class SessionLife:
    """One session. It is used by one rollout, and asked one thing at a time."""

    def __init__(
        self, environment: Environment, choice: EnvironmentChoice, uid: str, attempt: int, host: EnvironmentHost
    ) -> None:
        """Opens nothing yet."""
        self.environment = environment
        self.choice = choice
        self.messages: list[dict[str, Any]] = []
        """What the policy reads before its first turn."""
        self.tools: dict[str, Tool] = {}
        """What it may call, by name."""
        self.once: frozenset[str] = frozenset()
        """Tools whose calls are not made again where nobody knows whether they were made."""
        self.turn = 0
        """Whose calls are answered now; 0 before the agent's first."""
        self._uid, self._attempt, self._host = uid, attempt, host
        self._ticket: SessionTicket | None = None
        self._session: Any = None
        self._opened = False
        self._broken: EnvironmentFault | None = None
        self._steps: list[EnvironmentStep] = []
        self._warnings: set[str] = set()

    @property
    def final(self) -> bool:
        """Whether it was opened, and is lost with this attempt."""
        return self._opened and self.environment.crash is CrashEffect.NONE

    @property
    def tools_digest(self) -> str:
        """By which a list of tools is known again."""
        shown = [tool.shown for tool in self.tools.values()]
        return hashlib.blake2b(orjson.dumps(shown, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()

    async def open(self, snapshot: bytes | None = None) -> None:
        """Opens the session, anew or at a snapshot."""
        environment, choice = self.environment, self.choice
        ticket = self._ticket = await self._host.enter(choice.name, environment, self._uid, self._attempt)
        about = (choice.task, choice.seed, self._uid, self._attempt)

        def opening() -> Awaitable[object]:
            return environment.open(*about) if snapshot is None else environment.restore(snapshot, *about)

        # Any object, because a plug-in need not keep to its types.
        opened: object = await self._bounded("open", opening, "open", (EnvironmentFull, RequestFault))
        what = "open" if snapshot is None else "restore"
        if not isinstance(opened, OpenedSession):
            got = type(opened).__name__
            raise self._break(f"{what} did not return an OpenedSession but {got}", retryable=False)
        # First, so that it is closed also where something else of it is wrong.
        session = self._session = opened.session
        self._opened = True
        ticket.close = lambda: environment.close(session)
        try:
            checked = checked_opening(opened)
        except OpeningInvalid as error:
            raise self._break(f"{what} returned what cannot be used: {error}", retryable=False) from None
        self.once, self.messages = checked.once, checked.messages
        self.tools = {tool.function.name: self._as_tool(tool) for tool in checked.tools}

    def _as_tool(self, definition: ToolDefinition) -> Tool:
        name = definition.function.name

        # The double underscore keeps it apart from an argument of that name.
        async def run(context__: ToolContext, /, **arguments: Any) -> object:
            return (await self.call(name, arguments, place=context__.place)).content

        return Tool(definition, run, stateful=True)

    def refuse_second(self, names: Iterable[str]) -> None:
        """Raises `EnvironmentLost` where an earlier attempt may have called one of these tools, and once is enough."""
        if twice := sorted(self.once & set(names)):
            raise EnvironmentLost(
                f"environment {self.choice.name}: an earlier attempt may have called {twice[0]}, which is called once"
            )

    async def call(self, name: str, arguments: dict[str, Any], *, place: int) -> StepAnswer:
        """Passes a call on."""
        return await self._ask(name, lambda: self.environment.call(self._session, name, arguments), place)

    async def step(self, text: str) -> StepAnswer:
        """Passes a message of the policy on; returns and raises as `call`."""
        return await self._ask("step", lambda: self.environment.step(self._session, text), 0)

    async def take_facts(self) -> EnvironmentFacts | None:
        """Returns what the journal must hold of the steps since the last time; None where there were none."""
        if not self._steps:
            return None
        snapshot = None
        if self.environment.crash is CrashEffect.SNAPSHOT:
            data: object = await self._bounded("snapshot", lambda: self.environment.snapshot(self._session), "snapshot")
            if not isinstance(data, bytes) or len(data) > MOST_SNAPSHOT_BYTES:
                raise self._break(f"a snapshot must be at most {MOST_SNAPSHOT_BYTES:,} bytes", retryable=False)
            snapshot = base64.b64encode(data).decode()
        steps, self._steps = tuple(self._steps), []
        return EnvironmentFacts(steps, snapshot)

    def take_warnings(self) -> tuple[str, ...]:
        """Returns what the result should say of the answers since the last time."""
        taken = tuple(sorted(self._warnings))
        self._warnings.clear()
        return taken

    async def score(self, transcript: Sequence[dict[str, Any]]) -> SessionScore | None:
        """Asks what the rollout is worth; None where the environment gives no score. Raises `EnvironmentFault`."""
        score: object = await self._bounded("score", lambda: self.environment.score(self._session, transcript), "score")
        if score is None:
            return None
        if not isinstance(score, SessionScore):
            raise self._break(f"score did not return a SessionScore but {type(score).__name__}", retryable=False)
        # An infinite reward would spoil a whole batch of a trainer.
        if not _is_finite(score.reward):
            raise self._break("the reward of its score is no finite number", retryable=False)
        parts: object = score.parts
        if not isinstance(parts, Mapping) or not all(_is_text(n) and _is_finite(v) for n, v in parts.items()):
            raise self._break("the parts of its score are no dict of finite numbers by name", retryable=False)
        return score

    async def close(self) -> None:
        """Closes the session, if it was opened; harmless when repeated."""
        if self._ticket is not None:
            await self._host.leave(self._ticket)

    async def _ask(self, what: str, ask: Callable[[], Awaitable[object]], place: int) -> StepAnswer:
        # Before `ask` makes a coroutine: a broken session is not asked at all.
        self._check()
        try:
            answer: object = await self._bounded(what, ask, "call", (ToolFailed,))
        except ToolFailed as refused:
            answer = f"Error: {refused.message}"
        except _TimeOver:
            answer = timed_out(self._host.seconds)
        checked = self._checked(what, StepAnswer(answer) if isinstance(answer, str) else answer)
        self._steps.append(EnvironmentStep(place, checked.reward, checked.done, dict(checked.info)))
        return checked

    def _checked(self, what: str, answer: object) -> StepAnswer:
        said: object = answer.content if isinstance(answer, StepAnswer) else None
        if (fault := content_fault(said)) is not None:
            raise self._break(f"{what} returned {fault}", retryable=False)
        if not isinstance(answer, StepAnswer) or not isinstance(answer.content, str):
            raise self._break(f"{what} did not return a StepAnswer with a text", retryable=False)
        if answer.reward is not None and not _is_finite(answer.reward):
            raise self._break(f"the reward of {what} is no finite number", retryable=False)
        try:
            written = orjson.dumps(dict(answer.info))
        except (TypeError, ValueError):
            raise self._break(f"the info of {what} cannot be written as JSON", retryable=False) from None
        info = orjson.loads(written)
        if len(written) > MOST_INFO_BYTES:
            info = {"cut": f"{len(written)} bytes, at most {MOST_INFO_BYTES} are kept"}
        reward = None if answer.reward is None else float(answer.reward)
        shown = cut_result(answer.content, self._host.result_bytes)
        if shown.cut:
            # By the environment's name: a task may name its tools, and warnings are counted by what they name.
            self._warnings.add(f"tool_result_cut:{self.choice.name}")
        return StepAnswer(shown.text, reward, bool(answer.done), info)

    async def _bounded(
        self, what: str, ask: Callable[[], Awaitable[T]], counted_as: str, passes: tuple[type[Exception], ...] = ()
    ) -> T:
        """Asks the environment within the time limit; what it raises, but for `passes`, becomes a fault of it."""
        limit = asyncio.timeout(self._host.seconds)
        start, outcome = time.perf_counter(), "error"
        try:
            async with limit:
                # Here, because a method with other arguments than ours fails when it is called.
                answer = await ask()
            outcome = "ok"
            return answer
        except passes as refusal:
            outcome = "full" if isinstance(refusal, EnvironmentFull) else "refused"
            raise
        except EnvironmentFault as error:
            self._broken = error
            raise
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                # The rollout is cancelled, and nobody knows whether the call was done.
                outcome = "cancelled"
                self._break(f"{what} was cancelled")
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                outcome = "timeout"
                if self.environment.crash is CrashEffect.STATELESS and ToolFailed in passes:
                    raise _TimeOver from None
                raise self._break(f"{what} did not answer in {self._host.seconds:g} s") from None
            raised = PluginError.of(error)
            raised.log(f"environment {self.choice.name}")
            raise self._break(f"{what} failed with {raised}") from None
        finally:
            ENVIRONMENT_CALLS.observe(time.perf_counter() - start, self.choice.name, counted_as, outcome)

    def _check(self) -> None:
        if self._ticket is not None and self._ticket.fenced:
            raise self._break("a newer attempt has its session; this one is over", retryable=False)
        if self._broken is not None:
            raise self._broken

    def _break(self, why: str, *, retryable: bool = True) -> EnvironmentFault:
        self._broken = EnvironmentFault(f"environment {self.choice.name}: {why}", retryable=retryable)
        return self._broken


class _TimeOver(Exception):
    """A stateless environment did not answer in time."""


def _is_text(name: object) -> bool:
    """Whether it can be written as JSON: half of a surrogate pair is a string to Python."""
    return isinstance(name, str) and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_finite(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
