"""Errors name their boundary, have a message of their own, and survive pickling, because Celery may pickle them."""

import pickle
from collections.abc import Iterator

import pytest

from rolloutpool_common import errors
from rolloutpool_common.errors import RolloutError, RolloutPoolError, TrainerStatusError
from rolloutpool_common.outcomes import Boundary, Category, FailureKind
from rolloutpool_common.store import IdempotencyKeyReused, StoreError


def tree(root: type[RolloutPoolError]) -> Iterator[type[RolloutPoolError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


OURS = [error for error in dict.fromkeys(tree(RolloutPoolError)) if error.__module__.startswith("rolloutpool_common.")]
ENDS = [error for error in OURS if issubclass(error, RolloutError)]


@pytest.mark.parametrize("error", [e for e in OURS if e.__module__ == errors.__name__], ids=lambda e: e.__name__)
def test_each_survives_pickling_with_its_message(error: type[RolloutPoolError]) -> None:
    for made in (error(), error("what happened")):
        copy = pickle.loads(pickle.dumps(made))
        assert type(copy) is error
        assert (copy.message, str(copy)) == (made.message, made.message)
        assert made.message
    assert error().message == (error.__doc__ or "").strip()


@pytest.mark.parametrize("error", [e for e in ENDS if e.__module__ == errors.__name__], ids=lambda e: e.__name__)
def test_each_end_of_a_rollout_becomes_one_failure(error: type[RolloutError]) -> None:
    failure = error("what happened").failure(7)
    assert (failure.message, failure.turn) == ("what happened", 7)
    assert isinstance(failure.boundary, Boundary)
    # Only what the policy cannot cause may be tried again.
    assert not failure.retryable or failure.kind is FailureKind.INFRA


def test_a_conflict_keeps_the_batch_over_pickling() -> None:
    copy = pickle.loads(pickle.dumps(IdempotencyKeyReused("m", batch_id="b1")))
    assert (copy.message, copy.batch_id) == ("m", "b1")
    assert isinstance(copy, StoreError)


@pytest.mark.parametrize(
    ("status", "category", "retryable", "promised"),
    [
        (302, Category.TRAINER_ERROR, False, False),
        (400, Category.TRAINER_CLIENT_ERROR, False, False),
        (422, Category.MASK_REFUSED, False, False),
        (429, Category.RATE_LIMITED, True, True),
        (500, Category.TRAINER_SERVER_ERROR, True, True),
        (502, Category.TRAINER_SERVER_ERROR, False, True),
        (503, Category.TRAINER_SERVER_ERROR, True, True),
        (504, Category.TRAINER_SERVER_ERROR, False, True),
    ],
)
@pytest.mark.parametrize("repeatable", [False, True])
def test_a_status_and_the_trainers_promise_decide_category_and_retry(
    status: int, category: Category, retryable: bool, promised: bool, repeatable: bool
) -> None:
    made = TrainerStatusError("m", status=status, retry_after=3.0, repeatable=repeatable)
    error = pickle.loads(pickle.dumps(made))
    retryable = promised if repeatable else retryable
    assert (error.http_status, error.retry_after, error.retryable) == (status, 3.0, retryable)
    failure = error.failure()
    assert (failure.category, failure.retryable, failure.http_status) == (category, retryable, status)
    assert (failure.kind, failure.boundary, failure.turn) == (FailureKind.INFRA, Boundary.TRAINER, None)
