"""What can go wrong between a process and Redis.

RolloutPoolError
└── StoreError
    ├── StoreUnavailable      no answer; try again
    ├── StoreFull             Redis is out of memory
    ├── TooManyOpen           the queue limit is reached
    ├── IdempotencyKeyReused  same key, other content
    ├── BatchStillRunning     only an ended batch can be deleted
    ├── ClaimLost             this worker no longer owns the rollout
    └── ForeignSchema         the data is another version's (`schema.py`)
"""

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rolloutpool_common.errors import RolloutPoolError

__all__ = [
    "BatchStillRunning",
    "ClaimLost",
    "IdempotencyKeyReused",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TooManyOpen",
    "store_errors",
]


class StoreError(RolloutPoolError):
    """The store refused."""


class StoreUnavailable(StoreError):
    """Redis does not answer; check ROLLOUTPOOL_REDIS_URL and the server, then try again."""


class StoreFull(StoreError):
    """Redis is out of memory: raise maxmemory, or delete ended batches."""


class TooManyOpen(StoreError):
    """As many rollouts are accepted and not ended as this pool takes; wait until some have ended."""


class IdempotencyKeyReused(StoreError):
    """This idempotency key was used before, with other content."""

    def __init__(self, message: str | None = None, *, batch_id: str = "") -> None:
        super().__init__(message)
        self.batch_id = batch_id

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_reused, (self.message, self.batch_id))


def _rebuild_reused(message: str, batch_id: str) -> IdempotencyKeyReused:
    return IdempotencyKeyReused(message, batch_id=batch_id)


class BatchStillRunning(StoreError):
    """The batch has rollouts that have not ended; cancel it first."""


class ClaimLost(StoreError):
    """Another worker has this rollout now, or it has ended; stop running it."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns redis-py's errors into ours; the message names neither URL nor password."""
    try:
        yield
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise StoreUnavailable(f"{StoreUnavailable.__doc__} ({type(error).__name__})") from None
    except ResponseError as error:
        # By text too, because Redis 6.2 wraps what stops a script into an error of its own.
        text = str(error)
        if isinstance(error, OutOfMemoryError) or "-OOM " in text:
            raise StoreFull from None
        if isinstance(error, ReadOnlyError) or "-READONLY " in text or "MISCONF " in text:
            raise StoreUnavailable("Redis takes no writes: a replica, or its disk is full; see its log") from None
        raise
