"""Loads tokenizers before the worker takes its first ticket, and before it claims the rollouts that need them.

A load takes seconds of CPU and can fail in ugly ways (out of memory, a broken file). A worker that dies while it loads
should hold no claim, so that no rollout loses anything. So:

1. A worker that starts loads what the live batches need, as many as its cache keeps, for `warm_up_seconds` at most.
   What is refused or broken is skipped with one line in the log: the rollouts that need it fail one by one, later.
2. A ticket's rollout waits here until its tokenizer is loaded, and only then is claimed. Rollouts with another one go
   on meanwhile. The worker's beats name what is being loaded.
3. Few tokenizers are loaded at once, and places are fair: owners take turns, and none has all of them. 32 names that
   no hub knows kept a neighbour's tokenizer waiting for minutes. A tokenizer that several owners need waits in the line
   of each, so that nobody can hold it up by asking for it behind 32 others.
4. After its claim a rollout can still find that others have pushed its tokenizer out of the cache. Only then is it
   loaded under a claim. No call was noted by then (`store.model_calls`), so nothing becomes ambiguous.

One task loads a tokenizer, and all rollouts that need it wait for that task. A thread for each waiting rollout would
take the threads that other rollouts need for long texts.
"""

import asyncio
import logging
import time
from collections import Counter

from rolloutpool_common.rendering import TokenizerCache, TokenizerLoadError
from rolloutpool_common.store import Store, StoreError
from rolloutpool_common.store.batch_tokenizers import TokenizerRef
from rolloutpool_worker.drain import Drain
from rolloutpool_worker.rollout.fair_places import FairPlaces

_log = logging.getLogger(__name__)

PLACES = 3
"""Tokenizers that a worker loads at once. Most of a load holds Python's lock, so more would not be faster."""
PLACES_OF_ONE = 2
"""Of these, most that one owner has."""


class TokenizerLoads:
    """The loads of one process."""

    def __init__(self, cache: TokenizerCache, store: Store, drain: Drain) -> None:
        self._cache = cache
        self._store = store
        self._drain = drain
        self._tasks: dict[tuple[TokenizerRef, str], asyncio.Task[None]] = {}
        """By tokenizer and owner."""
        self._places = FairPlaces(PLACES, PLACES_OF_ONE)
        self._waiting: Counter[TokenizerRef] = Counter()

    def waiting(self) -> list[str]:
        """Returns the names of the tokenizers that wait for a place to be loaded."""
        return list(dict.fromkeys(ref.name for ref in self._waiting if not self._cache.is_loaded(*ref)))

    async def before_claim(self, uid: str) -> str:
        """Waits until the tokenizer of a rollout is loaded, could not be loaded, or this process shuts down."""
        needed = await self._store.batch_tokenizers.of_rollout(uid)
        if needed is None:
            return ""
        if self._cache.is_loaded(*needed.ref):
            return needed.trainer
        self._load(needed.ref, needed.owner)
        loads = {task for (ref, _), task in self._tasks.items() if ref == needed.ref}
        # Not a task itself: a rollout that is cancelled while it waits must not end the load for the others.
        drained = asyncio.ensure_future(self._drain.wait())
        try:
            await asyncio.wait({*loads, drained}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
        return needed.trainer if self._cache.is_loaded(*needed.ref) else ""

    async def warm_up(self, room: int, seconds: float) -> None:
        """Loads what the live batches need, before this process takes work."""
        try:
            async with asyncio.timeout(seconds):
                for ref in await self._store.batch_tokenizers.of_live_batches(room):
                    if not self._cache.is_loaded(*ref):
                        # Nobody's in particular; its own list is loaded one by one.
                        await asyncio.shield(self._load(ref, ""))
        except TimeoutError:
            _log.warning("loading tokenizers took longer than %.0f s: this worker takes work without the rest", seconds)
        except StoreError as error:
            _log.warning("this worker does not know which tokenizers are needed: %s", error.message)

    def _load(self, ref: TokenizerRef, owner: str) -> asyncio.Task[None]:
        task = self._tasks.get((ref, owner))
        if task is None:
            task = self._tasks[ref, owner] = asyncio.create_task(self._in_turn(ref, owner))
            task.add_done_callback(lambda _: self._tasks.pop((ref, owner)))
        return task

    async def _in_turn(self, ref: TokenizerRef, owner: str) -> None:
        self._waiting[ref] += 1
        try:
            await self._places.take(owner)
        finally:
            self._waiting -= Counter([ref])
        try:
            # Another owner's turn may have come before.
            if not self._cache.is_loaded(*ref):
                await self._loaded(ref)
        finally:
            self._places.give(owner)

    async def _loaded(self, ref: TokenizerRef) -> None:
        name = ref.name if ref.revision is None else f"{ref.name}@{ref.revision}"
        start = time.monotonic()
        _log.info("loading tokenizer %s; rollouts that need it wait unclaimed", name)
        try:
            await self._cache.get(*ref)
        except TokenizerLoadError as error:
            # The cache remembers it, so each rollout that needs this one fails with the reason and without a load.
            _log.warning("tokenizer %s is skipped: %s", name, error)
        except Exception:
            # Whatever it is, a worker that starts must not end, and the rollouts meet it again under their claims.
            _log.exception("tokenizer %s is skipped", name)
        else:
            _log.info("tokenizer %s is loaded after %.1f s", name, time.monotonic() - start)
