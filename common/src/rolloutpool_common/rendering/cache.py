"""Keeps a few tokenizers loaded. Loading takes seconds, so it never runs on an event loop.

If many rollouts ask for one name at once, one of them loads it and the others wait. A failure is remembered for a
minute, so that ten thousand rollouts with a wrong name cost one load, and names that no hub knows cost their neighbours
little. It is not remembered longer, because the directory may still be on its way to the worker.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock

from cachetools import TTLCache

from rolloutpool_common.rendering.doubts import Doubts
from rolloutpool_common.rendering.errors import TokenizerLoadError, TokenizerNotAllowed
from rolloutpool_common.rendering.loading import is_path, load_tokenizer
from rolloutpool_common.rendering.render_budget import SECONDS
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

_Key = tuple[str, str | None]

_FAILURE_LIFE_S = 60.0
_FAILURES = 1024
"""Failed names remembered at once; a client that asks for ever new names must not fill the memory."""


class TokenizerCache:
    """Least recently used tokenizers, thread-safe."""

    def __init__(
        self,
        size: int,
        *,
        allow: Sequence[str] | None = None,
        paths: Sequence[str] | None = None,
        trust_remote_code_for: Sequence[str] = (),
        render_seconds: float = SECONDS,
    ) -> None:
        """Makes an empty cache of so many tokenizers.

        `allow` has shell patterns of the names that may be loaded; None allows any. Without it, only the directories
        of `paths` may be named, exactly as there; None allows any. `trust_remote_code_for` has the exact names whose
        repositories may run their own code in this process; `render_seconds` is the CPU that one render may take.
        """
        if size < 1:
            raise ValueError(f"A tokenizer cache needs room for at least one tokenizer, not {size}.")
        self.doubts = Doubts()
        """Of all these tokenizers; a doubt outlasts the tokenizer in the cache."""
        self._size = size
        self._allow = allow
        self._paths = None if paths is None else frozenset(_with_revision(path)[0] for path in paths)
        self._render_seconds = render_seconds
        self._trusted = frozenset(trust_remote_code_for)
        # Guards the three maps below; cachetools is not thread-safe.
        self._lock = Lock()
        # Not cachetools' LRUCache: listing its values for a heartbeat would count as using all of them.
        self._loaded: OrderedDict[_Key, ChatTokenizer] = OrderedDict()
        self._loading: dict[_Key, Future[ChatTokenizer]] = {}
        self._failed: TTLCache[_Key, TokenizerLoadError] = TTLCache(_FAILURES, _FAILURE_LIFE_S, timer=time.monotonic)

    async def get(self, name: str, revision: str | None = None) -> ChatTokenizer:
        """Returns the tokenizer like `load`, without blocking the event loop."""
        with self._lock:
            cached = self._touch((name, revision))
        return cached if cached is not None else await asyncio.to_thread(self.load, name, revision)

    def load(self, name: str, revision: str | None = None) -> ChatTokenizer:
        """Returns a tokenizer; loads it if it is not in the cache."""
        key = (name, revision)
        if self._allow is not None and not any(fnmatchcase(name, pattern) for pattern in self._allow):
            raise TokenizerNotAllowed(name, "this pool's settings allow only " + ", ".join(self._allow) + ".")
        # Before anything is looked up: an error that depended on what is there would tell a caller which directories a
        # worker has.
        if self._allow is None and self._paths is not None and is_path(name) and name not in self._paths:
            raise TokenizerNotAllowed(
                name, "it is a path, and a rollout may name only those that ROLLOUTPOOL_ALLOWED_TOKENIZERS lists."
            )
        with self._lock:
            pending = self._loading.get(key)
            if pending is None:
                if (cached := self._touch(key)) is not None:
                    return cached
                if (failed := self._failed.get(key)) is not None:
                    raise type(failed)(failed.name, failed.reason)
                mine: Future[ChatTokenizer] = Future()
                self._loading[key] = mine
        if pending is not None:
            return pending.result()
        try:
            tokenizer = load_tokenizer(
                name,
                revision,
                trust_remote_code=name in self._trusted,
                render_seconds=self._render_seconds,
                doubts=self.doubts,
            )
        # Even an interrupt: other threads wait for this future, and would wait for ever.
        except BaseException as error:
            with self._lock:
                del self._loading[key]
                if isinstance(error, TokenizerLoadError):
                    self._failed[key] = error
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._loaded[key] = tokenizer
            while len(self._loaded) > self._size:
                self._loaded.popitem(last=False)
        mine.set_result(tokenizer)
        return tokenizer

    def warm(self, names: Iterable[str]) -> None:
        """Load tokenizers now, before the first rollout asks for them."""
        for name in names:
            self.load(*_with_revision(name))

    def loaded(self) -> tuple[ChatTokenizer, ...]:
        """Returns the tokenizers that are loaded, the least recently used first."""
        with self._lock:
            return tuple(self._loaded.values())

    def loading(self) -> tuple[str, ...]:
        """Returns the names of the tokenizers that are being loaded now."""
        with self._lock:
            return tuple(name for name, _ in self._loading)

    def is_loaded(self, name: str, revision: str | None = None) -> bool:
        """Whether the tokenizer is in the cache; makes it the one that was used last, so that it stays there."""
        with self._lock:
            return self._touch((name, revision)) is not None

    def _touch(self, key: _Key) -> ChatTokenizer | None:
        tokenizer = self._loaded.get(key)
        if tokenizer is not None:
            self._loaded.move_to_end(key)
        return tokenizer


def _with_revision(name: str) -> _Key:
    """Splits `name@revision`. A directory's path may contain an @ itself; a hub name cannot."""
    if name.startswith(("/", ".", "~")) or Path(name).is_dir():
        return name, None
    repository, at, revision = name.partition("@")
    if at and not revision:
        raise TokenizerLoadError(name, "a revision must follow the @.")
    return repository, revision or None
