"""A trainer's promise holds until it answers without it, and is noted once with each batch."""

from rolloutpool_worker.policy.idempotence import IdempotentTrainers

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
PROMISE = {"x-idempotent-turns": "true"}


def test_each_batch_is_told_once() -> None:
    trainers = IdempotentTrainers()
    assert not trainers.is_news("b", A)
    trainers.hear(A, PROMISE)
    assert [trainers.is_news(*of) for of in (("b", A), ("b", A), ("c", A), ("b", B))] == [True, False, True, False]
