"""Keeps the vocabularies of the tokenizers that this process has loaded in Redis, for people who look at tokens.

1. Each second it looks which tokenizers are loaded. For a new one, and then every ten minutes, it asks Redis whether
   the vocabulary is kept. Asking also keeps the vocabulary from expiring.
2. If it is not kept, Redis tells one worker to write it. A thread needs about a second for 150,000 ids.
3. A vocabulary for which there is no room is named once in the log. Rollouts never wait for any of this, and lose
   nothing if it fails.
"""

import asyncio
import logging
import math
from time import monotonic

from rolloutpool_common.process.logs import log_event
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.rendering.pieces import write_pieces
from rolloutpool_common.store import Store, StoreError
from rolloutpool_common.store.pieces import Wanted

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 600.0
"""Between two questions for one vocabulary; Redis keeps an unused one for longer."""
SOON_SECONDS = 30.0
"""Until the next question where another worker writes it, or where Redis did not answer."""
MOST_IDS = 1_000_000
"""A larger vocabulary is written by no worker; the largest ones have some 260,000 ids."""


class VocabularyWriter:
    """Writes the vocabularies of one process's tokenizers."""

    def __init__(self, cache: TokenizerCache, store: Store, worker_id: str, max_bytes: int) -> None:
        """Prepares without asking."""
        self._cache = cache
        self._store = store
        self._worker_id = worker_id
        self._max_bytes = max_bytes
        self._due: dict[str, float] = {}
        """By hash, when the next question is due."""

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Asks for each loaded tokenizer that is due, and writes what is wanted."""
        loaded = {tokenizer.fingerprint.tokenizer_sha256: tokenizer for tokenizer in self._cache.loaded()}
        self._due = {sha: due for sha, due in self._due.items() if sha in loaded}
        for sha, tokenizer in loaded.items():
            now = monotonic()
            if now < self._due.get(sha, -math.inf):
                continue
            try:
                pause = await self._ask(sha, tokenizer)
            except StoreError as error:
                log_event(_log, logging.WARNING, "vocabulary delayed", tokenizer=tokenizer.name, why=error.message)
                pause = SOON_SECONDS
            except Exception:
                # A tokenizer of a kind that nobody foresaw must not cost the worker anything.
                _log.exception("the vocabulary of %s can't be written", tokenizer.name)
                pause = math.inf
            self._due[sha] = now + pause

    async def _ask(self, sha: str, tokenizer: ChatTokenizer) -> float:
        """Asks, and writes where that is wanted; returns the seconds until the next question."""
        if tokenizer.vocab_size > MOST_IDS:
            why = f"it has more than {MOST_IDS:,} ids"
            log_event(_log, logging.WARNING, "vocabulary not kept", tokenizer=tokenizer.name, why=why)
            return math.inf
        wanted = await self._store.pieces.wanted(sha, self._worker_id)
        if wanted is Wanted.AWAITED:
            return SOON_SECONDS
        if wanted is Wanted.WRITE:
            written = await asyncio.to_thread(write_pieces, tokenizer)
            kept = await self._store.pieces.keep(sha, written, max_bytes=self._max_bytes)
            if not kept and sha not in self._due:
                why = "all vocabularies would take more than ROLLOUTPOOL_TOKEN_PIECES_MB; its tokens are seen as ids"
                size = len(written) // 1000
                log_event(_log, logging.WARNING, "vocabulary not kept", tokenizer=tokenizer.name, kb=size, why=why)
        return AGAIN_SECONDS
