"""What this process knows of its engines: how long their context is, which weights they have, which paths they lack.

All of it is asked for at most once in a while, however many rollouts want to know: the first one asks, and the others
wait for its answer.

1. The context length is asked before the first call (`GET /v1/models`, which both engines answer). Where it is not
   told, the engine's own refusal of a long prompt tells it.
2. The name of the weights is asked once per second at most, for the staleness gate and the salt of the prefix cache. An
   engine that does not tell it (vLLM does in its development mode alone) is not asked again for a while.
3. A question for the weights may also fail: no connection, no answer in time, a 502. That says nothing of the weights,
   and a rollout that began without knowing them may be sampled in vain. So the question is repeated, up to `TRIES`
   times, and who asks waits meanwhile. Then rollouts begin without an answer, and one question after a growing pause
   finds out when the engine tells again.
4. A path that an engine lacks (403, 404) is not tried again for a while.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache

from rolloutpool_common.errors import RolloutError
from rolloutpool_common.process.backoff import Backoff

REMEMBERED = 1024
KEEP_SECONDS = 300.0
"""An engine may be started again with other options."""
VERSION_SECONDS = 1.0
"""A weight update takes longer."""
TRIES = 4
"""Questions for the weights that fail in a row before rollouts begin without an answer."""
SILENCE = Backoff(first_s=0.5, longest_s=30.0)
"""Between two questions for the weights of which the first has failed."""

Question = Callable[[], Awaitable[Any]]
PauseAfter = Callable[[RolloutError, int, float], Awaitable[None]]
"""Waits for so many seconds, where so many questions have failed, the last one with this error. What it raises ends the
turn."""


@dataclass
class _Silence:
    """An engine whose weights could not be asked for."""

    failures: int = 0
    """In a row."""
    ask_at: float = 0.0
    """When it is asked again, on the clock of `Engines`; it counts once there are `TRIES` failures."""


class Engines:
    """Holds what is known of engines, by `http://host:port` and model."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Knows nothing. `clock` returns seconds; tests pass their own."""
        self._lengths: TTLCache[tuple[str, str | None], int | None] = TTLCache(REMEMBERED, KEEP_SECONDS, clock)
        self._versions: TTLCache[str, str] = TTLCache(REMEMBERED, VERSION_SECONDS, clock)
        self._untold: TTLCache[str, None] = TTLCache(REMEMBERED, KEEP_SECONDS, clock)
        self._silent: TTLCache[str, _Silence] = TTLCache(REMEMBERED, KEEP_SECONDS, clock)
        self._clock = clock
        self._lacks: TTLCache[tuple[str, str], None] = TTLCache(REMEMBERED, KEEP_SECONDS, clock)
        self._asking: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def context_length(self, origin: str, model: str | None, ask: Question) -> int | None:
        """Returns how many ids a prompt and its answer may have together; None where the engine does not tell."""
        key = origin, model
        if key not in self._lengths:
            async with self._asking[origin, "length"]:
                if key not in self._lengths:
                    self._lengths[key] = context_length_of(await ask(), model)
        return self._lengths.get(key)

    def known_length(self, origin: str, model: str | None) -> int | None:
        """Returns the context length as far as it is known, and asks nobody."""
        return self._lengths.get((origin, model))

    def learn_context_length(self, origin: str, model: str | None, length: int) -> None:
        """Notes what an engine's refusal has told."""
        self._lengths[origin, model] = length

    async def version(self, origin: str, ask: Question, pause: PauseAfter) -> str | None:
        """Returns the name of the weights that the engine has now; None where it does not tell, or fails to."""
        if not self._is_settled(origin):
            async with self._asking[origin, "version"]:
                while not self._is_settled(origin):
                    try:
                        found: str | None = await ask()
                    except RolloutError as error:
                        await self._failed(origin, error, pause)
                        continue
                    self._silent.pop(origin, None)
                    if found is None:
                        self._untold[origin] = None
                    else:
                        self._versions[origin] = found
                        # With a TTL of a second, it could be gone when it is read below.
                        return found
        return self._versions.get(origin)

    def _is_settled(self, origin: str) -> bool:
        """Whether an engine need not be asked for its weights now."""
        if origin in self._untold or origin in self._versions:
            return True
        silence = self._silent.get(origin)
        return silence is not None and silence.failures >= TRIES and self._clock() < silence.ask_at

    async def _failed(self, origin: str, error: RolloutError, pause: PauseAfter) -> None:
        silence = self._silent.get(origin) or _Silence()
        silence.failures += 1
        wait = SILENCE.delay_s(silence.failures)
        if not error.retryable:
            # A 401, for instance, which a second question would get as well.
            silence.failures = max(silence.failures, TRIES)
        silence.ask_at = self._clock() + wait
        self._silent[origin] = silence
        if silence.failures < TRIES:
            await pause(error, silence.failures, wait)

    def lacks(self, origin: str, path: str) -> bool:
        """Whether the engine has said that it has no such path."""
        return (origin, path) in self._lacks

    def learn_lack(self, origin: str, path: str) -> None:
        """Notes that the engine has no such path."""
        self._lacks[origin, path] = None


def context_length_of(models: Any, model: str | None) -> int | None:
    """Finds the context length in the answer of `/v1/models`."""
    listed = models.get("data") if isinstance(models, dict) else None
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    lengths = {card.get("id"): card.get("max_model_len") for card in cards}
    known = {name: n for name, n in lengths.items() if type(n) is int and n > 0}
    return known.get(model) or min(known.values(), default=None)
