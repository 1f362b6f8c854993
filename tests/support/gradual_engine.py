"""Sampling that takes time, so that calls are in flight while an imitated engine's weights are updated.

    sampler = GradualSampler(engine, ScriptedIds(tokenizer, turns=3), noted.append, pause=0.01)
    await sampler.update("8", Update.ABORT)

Each id is sampled by the weights that the engine has at that moment, so an update may fall between two ids of a call.
What a call has sampled is noted before it is answered: these notes are the truth that results are compared with
(`engine_calls`), whether the answer arrives or not.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from tests.support.imitated_engine import Answer, CallName, ImitatedEngine
from tests.support.scripted_ids import ScriptedIds
from tests.support.waiting import until_true


class Update(StrEnum):
    """What an engine does with calls around a weight update."""

    ABORT = "abort"
    """Calls in flight end with what they have."""
    WAIT = "wait"
    """Calls in flight end as usual before the update; only vLLM has this."""
    FREEZE = "freeze"
    """Calls in flight stand still and go on with the new weights: `keep` of vLLM, `retract` and `in_place` of SGLang.
    """


@dataclass(frozen=True)
class NotedCall:
    """What one call has sampled."""

    uid: str
    turn: int
    attempt: int
    call: int
    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    versions: list[str]
    """Of each id."""
    finish: str


class GradualSampler:
    """Samples for one engine."""

    def __init__(
        self, engine: ImitatedEngine, policy: ScriptedIds, note: Callable[[NotedCall], object], *, pause: float
    ) -> None:
        """Becomes the engine's sampler, with a pause between two ids; `note` gets each call before it is answered."""
        self.drawn = 0
        """Ids that were sampled in all calls."""
        self._engine, self._policy, self._note, self._pause = engine, policy, note, pause
        self._hold_at: int | None = None
        """Ids after which nothing is sampled until the weights were exchanged."""
        self._aborts = 0
        self._running = 0
        self._idle, self._going = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._going.set()
        engine.sampler = self._sample

    async def update(self, version: str, how: Update, seconds: float = 0.1) -> None:
        """Exchanges the weights; the engine samples nothing for so many seconds."""
        if how is Update.FREEZE:
            self._going.clear()
        else:
            # vLLM answers 503 from now on, and SGLang lets new calls wait.
            self._engine.paused.clear()
            self._aborts += how is Update.ABORT
            self._go_on()
            await self._idle.wait()
        await asyncio.sleep(seconds)
        self._engine.version = version
        self._go_on()
        self._engine.paused.set()

    async def holds_at(self, drawn: int) -> None:
        """Returns when so many ids were sampled; no more are before an update, however late it is."""
        self._hold_at = drawn
        await until_true(lambda: self.drawn >= drawn, 120.0)

    def _go_on(self) -> None:
        self._hold_at = None
        self._going.set()

    async def _sample(self, name: str, prompt: list[int], most: int) -> Answer:
        self._running += 1
        self._idle.clear()
        try:
            return await self._sampled(CallName.read(name), prompt, most)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _sampled(self, named: CallName, prompt: list[int], most: int) -> Answer:
        engine, aborts = self._engine, self._aborts
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[str] = []
        drawing = self._policy.draw(named, prompt)
        finish = "length"
        while len(ids) < most:
            await self._going.wait()
            if aborts != self._aborts:
                finish = "abort"
                break
            # No update can fall between this and the sampling, which does not wait.
            versions.append(engine.version)
            token, logprob = next(drawing)
            ids.append(token)
            logprobs.append(logprob)
            self.drawn += 1
            if self.drawn == self._hold_at:
                self._going.clear()
            if token == engine.close_id:
                finish = "stop"
                break
            await asyncio.sleep(self._pause)
        self._note(NotedCall(named.uid, named.turn, named.attempt, named.call, prompt, ids, logprobs, versions, finish))
        return Answer(ids, finish, spans_of(versions), logprobs)


def spans_of(versions: Sequence[str]) -> list[dict[str, Any]]:
    """Writes the versions of a call's ids as engines do: half-open spans."""
    spans, at = [], 0
    for version, some in groupby(versions):
        n = len(list(some))
        spans.append({"version": version, "start": at, "end": at + n})
        at += n
    return spans
