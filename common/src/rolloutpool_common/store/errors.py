"""Says what can go wrong between a process and Redis.

RolloutPoolError
└── StoreError
    ├── StoreUnavailable      no answer, or a refusal that can pass; try again
    │   └── StoreMisaddressed the address can't be of use; it stays so until somebody acts
    │       └── StoreUntrusted  its certificate is not trusted
    ├── StoreFull             Redis is out of memory
    ├── TooManyOpen           the queue limit is reached
    ├── OverQuota             an owner is past their quota, or past their share of what is short
    ├── NoRoom                Redis has no room for more
    ├── IdempotencyKeyReused  same key, other content
    ├── BatchStillRunning     only an ended batch can be deleted
    ├── ClaimLost             this worker no longer owns the rollout
    └── ForeignSchema         the data is another version's (`schema.py`)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.security.certificates import find_distrust
from rolloutpool_common.store.redis_compat import HANDLER_CLOSED


class StoreError(RolloutPoolError):
    """The store refused."""


class StoreUnavailable(StoreError):
    """Redis does not answer; check ROLLOUTPOOL_REDIS_URL and the server, then try again."""


class StoreMisaddressed(StoreUnavailable):
    """The address of Redis can't be of use as it is."""


class StoreUntrusted(StoreMisaddressed):
    """Redis' certificate is not trusted: name the file of its authority by ROLLOUTPOOL_REDIS_CA."""


class StoreFull(StoreError):
    """Redis is out of memory: raise maxmemory, or delete ended batches."""


class TooManyOpen(StoreError):
    """As many rollouts are accepted and not ended as this pool takes; wait until some have ended."""


class RefusalCause(StrEnum):
    """Why a submit was refused that had no fault."""

    OPEN = "open"
    """The pool has as many open rollouts as it takes."""
    MEMORY = "memory"
    """Redis has no room."""
    QUOTA_OPEN = "quota_open"
    QUOTA_WEIGHT = "quota_weight"
    QUOTA_BYTES = "quota_bytes"
    SHARE_OPEN = "share_open"
    """The pool has as many open rollouts as it takes, and the owner has more than their share of them."""
    SHARE_BYTES = "share_bytes"
    """Redis has little room, and the owner holds more than their share of it."""


class OverQuota(StoreError):
    """This owner holds as much of the pool as they may; wait until some of it has ended."""

    def __init__(self, message: str | None = None, *, cause: RefusalCause = RefusalCause.QUOTA_OPEN) -> None:
        super().__init__(message)
        self.cause = cause


class NoRoom(StoreError):
    """Redis has no room for the results of more rollouts."""


class IdempotencyKeyReused(StoreError):
    """This idempotency key was used before, with other content."""

    def __init__(self, message: str | None = None, *, batch_id: str = "") -> None:
        super().__init__(message)
        self.batch_id = batch_id


class BatchStillRunning(StoreError):
    """The batch has rollouts that have not ended; cancel it first."""


class BatchDeleted(StoreError):
    """The batch is being deleted, so some of its results are gone; read batches before their retention is over."""


class ClaimLost(StoreError):
    """Another worker has this rollout now, or it has ended; stop running it."""


_NO_WRITES = "Redis takes no writes: a replica, or its disk is full; see its log"
FORGOTTEN_ACCOUNT = (
    "An account that was made by ACL SETUSER alone is gone when Redis has started again or another one has taken over: "
    "write it into redis.conf"
)
_NO_LOGIN = f"Redis refuses the name or password of ROLLOUTPOOL_REDIS_URL. {FORGOTTEN_ACCOUNT}"
_TOO_LARGE = "raise its proto-max-bulk-len (512mb by default) and client-query-buffer-limit, or submit smaller batches"
_CLOSED_IN_MID_SENDING = ("reset by peer", "Broken pipe")
_PASSING = {
    "READONLY ": _NO_WRITES,
    "MISCONF ": _NO_WRITES,
    "NOREPLICAS ": "Redis takes no writes: it has too few replicas (min-replicas-to-write); see its log",
    "MASTERDOWN ": "Redis is a replica that has lost its master: check ROLLOUTPOOL_REDIS_URL, or wait",
    "BUSY ": "Redis is busy with a script that does not end: wait, or end it with SCRIPT KILL",
    "Protocol error": f"Redis refuses a value of this size: {_TOO_LARGE}",
}
"""Words of a refusal -> what to do about it. Then the same command succeeds, so all of them are `StoreUnavailable`."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns redis-py's errors into ours, as `store_error` does."""
    try:
        yield
    except Exception as error:
        if (ours := store_error(error)) is error:
            raise
        raise ours from None


def store_error(error: BaseException) -> BaseException:
    """Returns our error for one of redis-py's, or what is none of them; its message names neither URL nor password."""
    match error:
        # It is a ConnectionError to redis-py.
        case AuthenticationError():
            return StoreUnavailable(_NO_LOGIN)
        case RedisConnectionError() | RedisTimeoutError() | OSError():
            if cause := find_distrust(error):
                return StoreUntrusted(f"{StoreUntrusted.__doc__} ({cause})")
            # Every command was tried again by now. A Redis that is down refuses the new connection, so it is not this.
            if any(word in str(error) for word in _CLOSED_IN_MID_SENDING):
                return StoreUnavailable(
                    f"Redis closes the connection in the middle of a command. If this lasts: {_TOO_LARGE}"
                )
            return StoreUnavailable(f"{StoreUnavailable.__doc__} ({type(error).__name__})")
        case InvalidResponse():
            return StoreUnavailable("what answers at ROLLOUTPOOL_REDIS_URL does not speak Redis' protocol")
        case ResponseError():
            return _translated(error)
        case RuntimeError() if HANDLER_CLOSED in str(error):
            return StoreUnavailable(f"{StoreUnavailable.__doc__} (connection closed)")
    return error


def _translated(error: ResponseError) -> Exception:
    text = str(error)
    # By text too, because Redis wraps what stops a script into an error of its own.
    if isinstance(error, OutOfMemoryError) or "-OOM " in text:
        return StoreFull()
    if isinstance(error, ReadOnlyError):
        return StoreUnavailable(_NO_WRITES)
    if isinstance(error, MasterDownError):
        return StoreUnavailable(_PASSING["MASTERDOWN "])
    if isinstance(error, NoPermissionError) or "-NOPERM " in text:
        return StoreUnavailable(
            "Redis forbids this account a command or a key that the pool needs; allow it (ACL SETUSER)"
        )
    for word, message in _PASSING.items():
        if word in text:
            return StoreUnavailable(message)
    return error
