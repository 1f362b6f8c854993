"""The vocabularies of tokenizers, for people who look at tokens: kept once for all, read by those whose work used them.

1. A worker that has a tokenizer loaded asks `wanted`. If its vocabulary is not kept, one worker at a time is told to
   write it; the others ask again later. While a worker has the tokenizer, it asks again and again.
2. `keep` stores it. All vocabularies together take at most so many bytes, for which the API keeps memory free.
3. The end of a rollout (`finish.lua`) notes with its batch and its owner which tokenizer made its ids: the first time
   for each batch. From then on this owner may `read` that vocabulary.
4. The deletion of a batch takes its notes away (`forget_pieces.lua`). With the last note of all owners the vocabulary
   expires, after `IDLE_SECONDS`. So does one that a worker wrote and no rollout has used.

Example: the batches b1 and b2 of ann used tokenizer T. Bob asks for T: he gets nothing, as if it were not kept. b1 is
deleted: ann still reads T. b2 is deleted: nobody but an admin does, and an hour later it is gone.
"""

from enum import StrEnum

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

IDLE_SECONDS = 3600
"""How long a vocabulary is kept that no kept rollout used, after the last worker asked for it."""
WRITING_SECONDS = 60
"""A worker that was told to write it and has not done so by then has died."""


class Wanted(StrEnum):
    """Whether a vocabulary is to be written."""

    KEPT = "kept"
    """It is there."""
    WRITE = "write"
    """The worker that asked is to write it."""
    AWAITED = "awaited"
    """Another worker writes it."""


class Pieces:
    """The vocabularies in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def wanted(self, tokenizer_sha256: str, worker_id: str) -> Wanted:
        """Asks whether a worker that has this tokenizer is to write its vocabulary; keeps one that is there."""
        answer = await self._connection.script(
            "pieces_wanted", tokenizer_sha256, worker_id, IDLE_SECONDS, WRITING_SECONDS
        )
        return Wanted(answer.decode())

    async def keep(self, tokenizer_sha256: str, written: bytes, *, max_bytes: int) -> bool:
        """Stores a vocabulary, unless one is there."""
        return bool(await self._connection.script("keep_pieces", tokenizer_sha256, written, max_bytes, IDLE_SECONDS))

    async def read(self, tokenizer_sha256: str, owner: str | None) -> bytes | None:
        """Reads a vocabulary as it was written."""
        with store_errors():
            if owner is not None and not await self._redis.exists(keys.made_with(tokenizer_sha256, owner)):
                return None
            written: bytes | None = await self._redis.get(keys.pieces(tokenizer_sha256))
        return written

    async def forget_batch(self, batch_id: str, owner: str) -> None:
        """Takes away what a batch noted; for its deletion. May be repeated."""
        with store_errors():
            fields = await self._redis.hkeys(keys.batch(batch_id))
        noted = [field.decode().partition(":")[2] for field in fields if field.startswith(b"made_with:")]
        if noted:
            await self._connection.script("forget_pieces", batch_id, owner, IDLE_SECONDS, *noted)
