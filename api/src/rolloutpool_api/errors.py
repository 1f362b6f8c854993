"""Says what the API answers when it can't do what it was asked: one class per HTTP status and reason.

    RolloutPoolError
    └── ApiError                 has an HTTP status
        ├── MalformedBody        400
        ├── BadCursor            400
        ├── KeyRequired          401
        ├── Forbidden            403
        ├── ResourceUnknown      404
        ├── Conflict             409
        ├── BodyTooCostly        413
        ├── AnnotationsFull      413
        ├── UnsupportedBody      415
        ├── Rejected             422, carries the faults
        ├── QueueFull            429
        ├── QuotaExceeded        429
        ├── MemoryShort          503
        ├── NotReady             503
        ├── ReaderEnded          503
        └── ShuttingDown         503

A docstring is the default message. The paths of protocol v1 and of the Osmosis wire answer `{"detail": …}`, as FastAPI
does, all others `{"error": {"message": …, …}}`. A bad request never ends in a 500.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fastapi import Response
from fastapi.responses import JSONResponse

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.errors import Fault
from rolloutpool_common.store import (
    BatchDeleted,
    BatchStillRunning,
    IdempotencyKeyReused,
    RefusalCause,
    StoreError,
    StoreFull,
)

V1_PATHS = frozenset({"/rollout", "/tools", "/health"})


def has_v1_shape(at: str) -> bool:
    """Whether errors at this path have protocol v1's shape; those of the Osmosis wire have it too."""
    return at in V1_PATHS or at.startswith("/rollout/")


class ApiError(RolloutPoolError):
    """The request failed."""

    status: ClassVar[int] = 500
    retry_after_s: ClassVar[int | None] = None

    def extra(self) -> dict[str, Any]:
        """Fields of the error body beside the message."""
        return {}

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class MalformedBody(ApiError):
    """The body is not JSON."""

    status = 400


class BadCursor(ApiError):
    """The cursor is none of this pool's: pass `0` for the start, or a cursor that a result came with."""

    status = 400


class KeyRequired(ApiError):
    """This needs a key: send one of this pool's as `Authorization: Bearer KEY`."""

    status = 401

    def headers(self) -> dict[str, str]:
        """Names the way to authenticate, as a 401 must."""
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    """This key may not do this."""

    status = 403


class ResourceUnknown(ApiError):
    """There is nothing of this name."""

    status = 404


class Conflict(ApiError):
    """The request contradicts an earlier one."""

    status = 409

    def __init__(self, message: str | None = None, *, batch_id: str | None = None) -> None:
        super().__init__(message)
        self.batch_id = batch_id

    def extra(self) -> dict[str, Any]:
        """Names the batch that the conflict is with."""
        return {} if self.batch_id is None else {"batch_id": self.batch_id}


class BodyTooCostly(ApiError):
    """The body takes too much memory to read; send smaller batches, or raise ROLLOUTPOOL_MAX_BODY_MB."""

    status = 413


class AnnotationsFull(ApiError):
    """The batch's annotations would take more memory than they may (ROLLOUTPOOL_ANNOTATION_KB for each rollout)."""

    status = 413


class UnsupportedBody(ApiError):
    """Send plain JSON: `Content-Type: application/json`, no `Content-Encoding`."""

    status = 415


class Rejected(ApiError):
    """The request was rejected, and nothing was done."""

    status = 422

    def __init__(self, faults: Sequence[Fault], total: int) -> None:
        plural = "" if total == 1 else "s"
        super().__init__(f"rejected for {total} fault{plural}, and nothing was done; mend them and send it again")
        self.faults = list(faults)
        self.total = total

    def extra(self) -> dict[str, Any]:
        """Lists the faults."""
        return {"faults": [fault.model_dump() for fault in self.faults], "total_faults": self.total}


class QueueFull(ApiError):
    """As many rollouts are open as this pool takes (ROLLOUTPOOL_MAX_OPEN); submit again when some have ended."""

    status = 429
    retry_after_s = 5


class QuotaExceeded(ApiError):
    """This key holds as much of the pool as it may; submit again when some of its rollouts have ended."""

    status = 429
    retry_after_s = 5

    def __init__(self, message: str | None = None, *, cause: RefusalCause = RefusalCause.QUOTA_OPEN) -> None:
        super().__init__(message)
        self.cause = cause

    def extra(self) -> dict[str, Any]:
        """Names the limit."""
        return {"cause": self.cause}

    def headers(self) -> dict[str, str]:
        """Memory becomes free when data is deleted, which takes longer than the end of a rollout."""
        bytes_short = self.cause in (RefusalCause.QUOTA_BYTES, RefusalCause.SHARE_BYTES)
        return {"Retry-After": "30" if bytes_short else "5"}


class MemoryShort(ApiError):
    """Redis has no room for the results of more rollouts; submit again later, purge batches, or raise maxmemory."""

    status = 503
    retry_after_s = 30


class NotReady(ApiError):
    """The pool can't take work yet."""

    status = 503
    retry_after_s = 2

    def __init__(self, message: str | None = None, *, reasons: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.reasons = list(reasons)

    def extra(self) -> dict[str, Any]:
        """Says what the pool waits for."""
        return {"reasons": self.reasons} if self.reasons else {}


class ReaderEnded(ApiError):
    """The process that reads large bodies ended; send the request again."""

    status = 503
    retry_after_s = 2


class ShuttingDown(ApiError):
    """This API process is stopping. Work goes on; ask again, another one or its successor will answer."""

    status = 503
    retry_after_s = 2


def answer(
    at: str, status: int, message: str, extra: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Makes an error answer in the shape that this path has."""
    body = {"detail": message} if has_v1_shape(at) else {"error": {"message": message, **(extra or {})}}
    return JSONResponse(body, status_code=status, headers=headers)


def answer_error(at: str, error: ApiError) -> Response:
    """Makes the answer of an error, in the shape that this path has."""
    return answer(at, error.status, error.message, error.extra(), error.headers())


def answer_store_error(at: str, error: StoreError) -> Response:
    """Makes the answer to a request that the store refused or did not answer."""
    if isinstance(error, IdempotencyKeyReused | BatchStillRunning):
        return answer(at, 409, error.message)
    if isinstance(error, BatchDeleted):
        return answer(at, 410, error.message)
    # A full Redis stays full for a while; one that does not answer may be restarting.
    retry_after_s = 30 if isinstance(error, StoreFull) else 2
    return answer(at, 503, error.message, headers={"Retry-After": str(retry_after_s)})
