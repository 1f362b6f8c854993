"""Drain: how a worker process shuts down without losing or repeating work.

A **border** is a point of a rollout where nothing is in flight: just before a model call, and just before tools run.

1. The first SIGTERM begins the drain. The process claims no more rollouts.
2. Each running rollout stops at its next border (`check` raises `Drained`). Everything up to the border is in its
   journal, so the rollout goes back to the queue and another worker continues it. A model call in flight is awaited
   first; otherwise the next worker could not know whether the policy has sampled that turn.
3. A rollout that reaches no border within the drain time is cancelled and goes back to the queue as it is. If a model
   call was in flight, that turn is then ambiguous.
4. A second SIGTERM begins the hurry: nothing is awaited any more.

`RolloutStop` stops one rollout at its next border while the rest of the process goes on. It is used for suspects. A
rollout whose environment would lose its session does not stop at borders (`stay`): it ends here, or is cancelled when
the drain time is over.
"""

import asyncio
from contextlib import suppress
from typing import ClassVar

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.outcomes import RolloutEnd


class StoppedAtBorder(RolloutPoolError):
    """The rollout stops here, goes back to the queue, and goes on elsewhere."""


class EndedAtBorder(StoppedAtBorder):
    """The rollout ends here, without a failure."""

    end: ClassVar[RolloutEnd]
    """How."""


class Drained(StoppedAtBorder):
    """This worker is shutting down; the rollout goes on elsewhere."""


class SuspectCleared(StoppedAtBorder):
    """The suspect has made progress, so it need not run alone any more; a shared worker takes it from the queue."""


class Drain:
    """Whether this process is shutting down."""

    def __init__(self) -> None:
        self.begun = False
        """Whether the process claims no more rollouts."""
        self._begun = asyncio.Event()
        self._hurried = asyncio.Event()

    def begin(self) -> None:
        """Stops all rollouts of this process at their next border."""
        self.begun = True
        self._begun.set()

    def hurry(self) -> None:
        """Tells those who wait for `wait_hurried` that nothing may be awaited any more."""
        self._hurried.set()

    async def wait(self) -> None:
        """Returns when the drain begins."""
        await self._begun.wait()

    async def wait_hurried(self) -> None:
        """Returns when the hurry begins."""
        await self._hurried.wait()

    async def pause(self, seconds: float) -> None:
        """Waits at a border."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._begun.wait()
        self.check()

    def check(self) -> None:
        """Marks a border."""
        if self.begun:
            raise Drained


class RolloutStop:
    """Whether one rollout must stop at its next border: with its process, or alone."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._cleared = False
        self.stays = False
        """Whether it passes all borders."""

    def clear_suspect(self) -> None:
        """Stops this rollout, and no other, at its next border."""
        self._cleared = True

    async def pause(self, seconds: float) -> None:
        """Waits at a border; raises as `check`, and `Drained` as soon as the drain begins."""
        if self.stays:
            await asyncio.sleep(seconds)
        else:
            await self._drain.pause(seconds)

    def check(self) -> None:
        """Marks a border."""
        if self.stays:
            return
        if self._drain.begun:
            raise Drained
        if self._cleared:
            raise SuspectCleared


def is_cancelled() -> bool:
    """Whether the current task was really cancelled: by the API, by a drain or by a time limit."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
