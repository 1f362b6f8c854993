"""Errors survive pickling, and each has a message, a status and its extras."""

import json
import pickle

import pytest

from rolloutpool_api import errors
from rolloutpool_api.errors import (
    ApiError,
    BadCursor,
    Conflict,
    NotReady,
    Rejected,
    ShuttingDown,
    answer_store_error,
)
from rolloutpool_common.protocol.errors import Fault
from rolloutpool_common.store import (
    BatchDeleted,
    BatchStillRunning,
    IdempotencyKeyReused,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

REJECTED = Rejected([Fault(path="a", message="b")], 7)


@pytest.mark.parametrize(
    "error",
    [BadCursor(), Conflict("no", batch_id="b1"), NotReady("wait", reasons=["x"]), ShuttingDown(), REJECTED],
)
def test_they_survive_pickling(error: ApiError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.message, again.extra(), again.status) == (error.message, error.extra(), error.status)


def test_the_extras() -> None:
    assert REJECTED.extra() == {"faults": [{"path": "a", "message": "b"}], "total_faults": 7}
    assert "7 faults" in REJECTED.message
    assert "1 fault," in Rejected([], 1).message
    assert Conflict("no").extra() == {}
    assert NotReady("wait", reasons=["x"]).extra() == {"reasons": ["x"]}


def test_all_statuses_are_errors_of_their_kind() -> None:
    raised = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ApiError) and c is not ApiError]
    assert {c.status for c in raised} == {400, 401, 403, 404, 409, 413, 415, 422, 429, 503}
    assert all((c.retry_after_s is not None) == (c.status in (429, 503)) for c in raised)


@pytest.mark.parametrize(
    ("error", "status", "again_s"),
    [
        (IdempotencyKeyReused("used"), 409, None),
        (BatchStillRunning("runs"), 409, None),
        # For good, so that nobody asks again for pages that can't come.
        (BatchDeleted("deleted"), 410, None),
        (StoreFull("full"), 503, "30"),
        (StoreUnavailable("away"), 503, "2"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, StoreError) else None,
)
def test_what_the_store_says_is_final_or_may_be_asked_again(
    error: StoreError, status: int, again_s: str | None
) -> None:
    answer = answer_store_error("/v1/batches/b1/results", error)
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, again_s)
    assert json.loads(bytes(answer.body))["error"]["message"] == error.message
