"""Asks graders, so that none of them harms the worker or the rollouts beside it.

1. A grader that is declared isolated, or is no `async` function, is asked in a child process, by the same machinery as
   isolated tools. Each grader has `places` children of its own, so one that hangs keeps no other one waiting. Who has
   no place for as long as one answer may take leaves (`GraderBusy`), because waiting costs a slot of the worker.
2. Another one runs on an event loop of its own (`own_loop`), watched as tools are (`tools.watch`). When its time is
   over it is cancelled and left alone, so that nothing waits for one that does not obey. One that holds its loop is
   interrupted, and the next call gets another loop.
3. Whatever goes wrong is a `GraderFault`. It says which error the grader raised and where, and the log has the
   traceback (`plugin_errors`).
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from rolloutpool_common.capabilities.grading.errors import GradeInvalid, GradeLate, GraderFault
from rolloutpool_common.capabilities.grading.metrics import GRADER_CALLS, IN_GRADER
from rolloutpool_common.capabilities.grading.wire import Grade, GraderChoice
from rolloutpool_common.errors import RequestFault, RolloutError
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_worker.capabilities.grading.base import Grader, GraderBusy
from rolloutpool_worker.capabilities.grading.grades import answer_bytes, read_answer
from rolloutpool_worker.capabilities.grading.own_loop import LoopHeld, OwnLoop
from rolloutpool_worker.plugin_errors import PluginError
from rolloutpool_worker.tools import IsolatedTools, ToolContext, ToolWatch
from rolloutpool_worker.tools.isolated import IsolatedEnd, NoPlace

_log = logging.getLogger(__name__)

LONGEST_PAUSE = 60.0
"""Between two tries."""
MOST_HELD = 4
"""Loops of one grader that its code may hold at once, each with a thread. Beyond that its rollouts wait."""
_OUTCOMES = {GradeLate: "late", GradeInvalid: "invalid", RequestFault: "options"}
"""The labels of answers that are no grade, as `GRADER_OUTCOMES` explains them; all others are errors."""


def pause_after(error: RolloutError, choice: GraderChoice, tries: int, due: float) -> float | None:
    """Returns the seconds until a grader that has failed is asked again; None where it is not. `due` is monotonic."""
    pause = min(2.0**tries, LONGEST_PAUSE)
    again = isinstance(error, GraderFault) and error.retryable and tries < choice.retries
    return pause if again and time.monotonic() + pause < due else None


class GraderHost:
    """Holds what one worker process gives its graders."""

    def __init__(self, watch: ToolWatch, *, seconds: float, places: int) -> None:
        """Starts nothing yet."""
        self._seconds = seconds
        self._places = places
        self._isolated: dict[str, IsolatedTools] = {}
        self._own_watch = watch.apart()
        self._loops: dict[str, OwnLoop] = {}
        self._held: dict[str, list[OwnLoop]] = {}
        """Loops that did not answer, by grader."""
        self._looks: set[asyncio.Task[None]] = set()

    async def ask(
        self, grader: Grader, rollouts: Sequence[RolloutResult], options: Any, *, left_s: float, warnings: set[str]
    ) -> list[Grade]:
        """Asks a grader once."""
        start = time.perf_counter()
        try:
            try:
                with IN_GRADER:
                    async with asyncio.timeout(left_s) as deadline:
                        if grader.isolated is not None:
                            grades = await self._in_child(grader, rollouts, options)
                        else:
                            grades = await self._on_loop(grader, rollouts, options, warnings)
            except TimeoutError:
                if deadline.expired():
                    raise GradeLate(group=grader.of_groups) from None
                raise GraderFault(f"grader {grader.name} did not answer in time") from None
        except RolloutError as error:
            outcome = next((word for kind, word in _OUTCOMES.items() if isinstance(error, kind)), "error")
            GRADER_CALLS.observe(time.perf_counter() - start, grader.name, outcome)
            raise
        GRADER_CALLS.observe(time.perf_counter() - start, grader.name, "ok")
        return grades

    async def close(self) -> None:
        """Ends all children, and cancels what still runs."""
        for look in self._looks:
            look.cancel()
        for loop in (*self._loops.values(), *(one for held in self._held.values() for one in held)):
            loop.end()
        await asyncio.gather(*(isolated.close() for isolated in self._isolated.values()))

    async def _in_child(self, grader: Grader, rollouts: Sequence[RolloutResult], options: Any) -> list[Grade]:
        isolated = self._isolated.get(grader.name)
        if isolated is None:
            isolated = self._isolated[grader.name] = IsolatedTools(self._places)
        first = rollouts[0]
        context = ToolContext(first.uid, first.rollout_id, first.num_llm_calls, "grade", {})
        try:
            reply = await isolated.reply(
                grader.tool,
                context,
                {"rollouts": rollouts, "options": options},
                seconds=self._seconds,
                result_bytes=answer_bytes(rollouts),
                place_seconds=self._seconds,
            )
        except NoPlace:
            raise GraderBusy from None
        except IsolatedEnd as end:
            raise GraderFault(f"grader {grader.name}: {end.why}") from None
        except OSError as error:
            # The system has no process, or no memory, for a child.
            raise _failed(grader, PluginError.of(error)) from None
        if reply.raised is not None:
            raise _failed(grader, reply.raised)
        return read_answer(reply.text)

    async def _on_loop(
        self, grader: Grader, rollouts: Sequence[RolloutResult], options: Any, warnings: set[str]
    ) -> list[Grade]:
        loop = self._loop_of(grader)
        answer = loop.submit(self._guarded(grader, rollouts, options, warnings))
        try:
            done, _ = await asyncio.wait({answer}, timeout=self._seconds)
        except asyncio.CancelledError:
            self._give_up(grader, loop, answer)
            raise
        if not done:
            self._give_up(grader, loop, answer)
            raise GraderFault(f"grader {grader.name} did not answer within {self._seconds:g} s")
        if answer.cancelled():
            raise GraderFault(f"grader {grader.name} failed with CancelledError")
        return answer.result()

    def _loop_of(self, grader: Grader) -> OwnLoop:
        loop = self._loops.get(grader.name)
        if loop is None or not loop.alive:
            held = self._held[grader.name] = [one for one in self._held.get(grader.name, ()) if one.alive]
            if len(held) >= MOST_HELD:
                raise GraderBusy
            loop = self._loops[grader.name] = OwnLoop(f"grader {grader.name}")
        return loop

    def _give_up(self, grader: Grader, loop: OwnLoop, answer: "asyncio.Future[list[Grade]]") -> None:
        answer.cancel()
        look = asyncio.create_task(self._leave_if_held(grader, loop))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _leave_if_held(self, grader: Grader, loop: OwnLoop) -> None:
        if self._loops.get(grader.name) is not loop or await loop.answers():
            return
        # Another call may have seen it too.
        if self._loops.get(grader.name) is loop:
            log_event(_log, logging.WARNING, "grader holds its event loop", grader=grader.name)
            del self._loops[grader.name]
            self._held.setdefault(grader.name, []).append(loop)
            loop.leave()
            loop.interrupt()
            # Several calls may hold it, one after the other.
            while not await loop.answers() and loop.alive:
                loop.interrupt()

    async def _guarded(
        self, grader: Grader, rollouts: Sequence[RolloutResult], options: Any, warnings: set[str]
    ) -> list[Grade]:
        """Asks it; makes faults of what would end the event loop if it left a task."""
        try:
            asked = grader.ask(rollouts, options)
            return await self._own_watch.watched(f"grader {grader.name}", asked, warnings)
        except (GradeInvalid, RequestFault):
            raise
        except LoopHeld:
            raise GraderFault(f"grader {grader.name} held its event loop for too long, and was ended") from None
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise _failed(grader, PluginError.of(error)) from None


def _failed(grader: Grader, raised: PluginError) -> GraderFault:
    raised.log(f"grader {grader.name}")
    return GraderFault(f"grader {grader.name} failed with {raised}")
