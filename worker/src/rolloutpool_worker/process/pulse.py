"""The pulse of a worker process: what its beats say, and where their answers go.

Beats are sent by the lifeline's thread (`common/store/lifeline.py`), so that a busy event loop delays none. That alone
would prove no more than a thread, so each beat says how long ago the process last got on: its loop turned, its consumer
took a ticket, Redis accepted what a rollout wrote.

1. The event loop calls `turn` twice a second. It leaves what the next beats say, and proves that the loop turns.
2. The thread asks for that (`beat`), and hands on what Redis has answered (`hear`).
3. The event loop waits for the answers (`answers`).
4. Before the worker leaves Redis' list, the loop ends all of it (`end`).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from rolloutpool_common.store.lifeline import ANSWER_SECONDS
from rolloutpool_common.store.workers import Beat, BeatAnswer, Progress


class Pulse:
    """Holds what one process says of itself; made on its event loop."""

    def __init__(self, worker_id: str, wrote_at: Callable[[], float]) -> None:
        """Says nothing before the first `turn`."""
        self.answers: asyncio.Queue[BeatAnswer] = asyncio.Queue()
        self._worker_id = worker_id
        self._wrote_at = wrote_at
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: Beat | None = None
        self._turned = self._took = time.monotonic()
        self._ended = False
        self._quiet = threading.Event()
        """Set while no beat is on its way, and no answer."""
        self._quiet.set()

    def turn(self, told: Beat) -> None:
        """Notes that the loop turns, and what the worker says of itself."""
        self._loop = asyncio.get_running_loop()
        self._told, self._turned = told, time.monotonic()

    def took(self) -> None:
        """Notes that the consumer took a ticket; called in its thread."""
        self._took = time.monotonic()

    def beat(self) -> tuple[Any, ...] | None:
        """Returns what the next beat says; None before the first turn, and after the end."""
        # Set before the look, so that `end` waits for whoever has looked before it.
        self._quiet.clear()
        if self._told is None or self._ended:
            self._quiet.set()
            return None
        now = time.monotonic()
        progress = Progress(now - self._turned, now - self._took, time.perf_counter() - self._wrote_at())
        return self._told.arguments(self._worker_id, progress)

    def hear(self, answer: list[Any]) -> None:
        """Takes an answer to the event loop."""
        self._quiet.set()
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.answers.put_nowait, BeatAnswer.parse(answer))

    async def end(self) -> None:
        """Has the worker say nothing more, and waits at most two seconds for the answer to its last beat.

        A beat that Redis reads after the worker has left would list it again, as one that is there and then dies. One
        of 60 workers that were stopped on a busy machine was counted as lost by that.
        """
        self._ended = True
        await asyncio.to_thread(self._quiet.wait, ANSWER_SECONDS)
