"""The vocabularies of tokenizers, for people who look at tokens: one key for each, kept once for all.

1. A worker that has a tokenizer loaded asks `wanted`. If its vocabulary is not kept, one worker at a time is told to
   write it; the others ask again later. While a worker has the tokenizer, it asks again and again.
2. `keep` stores it. All vocabularies together take at most so many bytes, for which the API keeps memory free; the ones
   that nobody has asked for or read for the longest time make room.
3. `read` gives it to whoever knows the tokenizer's hash, which stands in the results that it made.
4. What nobody has asked for or read for `KEPT_SECONDS` expires. So a key's time to live says when it was used last.
"""

from enum import StrEnum

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

KEPT_SECONDS = 30 * 24 * 3600
"""Results may still be read when no worker has their tokenizer loaded any more."""
RECENT_SECONDS = 3600
"""One that was used so lately makes no room for another. Workers ask every ten minutes."""
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
        self._redis = connection.redis

    async def wanted(self, tokenizer_sha256: str, worker_id: str) -> Wanted:
        """Asks whether a worker that has this tokenizer is to write its vocabulary; keeps one that is there."""
        writer = keys.pieces_writer(tokenizer_sha256)
        with store_errors():
            if await self._redis.expire(keys.pieces(tokenizer_sha256), KEPT_SECONDS):
                return Wanted.KEPT
            if await self._redis.set(writer, worker_id, nx=True, ex=WRITING_SECONDS):
                return Wanted.WRITE
            # It may have been told so before, and the answer was lost.
            return Wanted.WRITE if await self._redis.get(writer) == worker_id.encode() else Wanted.AWAITED

    async def keep(self, tokenizer_sha256: str, written: bytes, *, max_bytes: int) -> bool:
        """Stores a vocabulary, unless one is there; False where there is no room for it."""
        with store_errors():
            sizes = {sha.decode(): int(size) for sha, size in (await self._redis.hgetall(keys.PIECES)).items()}
            look = self._redis.pipeline(transaction=False)
            for sha in sizes:
                look.ttl(keys.pieces(sha))
            left = dict(zip(sizes, await look.execute(), strict=True))
            if left.get(tokenizer_sha256, -2) != -2:
                return True
            used = sum(size for sha, size in sizes.items() if left[sha] != -2) + len(written)
            # Those that have expired still stand in the list of sizes, and go first.
            going: list[str] = []
            for sha in sorted(sizes, key=left.__getitem__):
                if left[sha] != -2:
                    if used <= max_bytes or left[sha] > KEPT_SECONDS - RECENT_SECONDS:
                        break
                    used -= sizes[sha]
                going.append(sha)
            if used > max_bytes:
                return False
            change = self._redis.pipeline(transaction=True)
            for sha in going:
                change.unlink(keys.pieces(sha))
                change.hdel(keys.PIECES, sha)
            change.set(keys.pieces(tokenizer_sha256), written, ex=KEPT_SECONDS)
            change.hset(keys.PIECES, tokenizer_sha256, len(written))
            await change.execute()
        return True

    async def read(self, tokenizer_sha256: str) -> bytes | None:
        """Reads a vocabulary as it was written."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.get(keys.pieces(tokenizer_sha256))
            pipe.expire(keys.pieces(tokenizer_sha256), KEPT_SECONDS)
            written: bytes | None = (await pipe.execute())[0]
        return written
