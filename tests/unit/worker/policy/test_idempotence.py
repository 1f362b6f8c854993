"""A trainer's promise holds until it answers without it, and is noted once with each batch."""

import pytest

from rolloutpool_worker.policy.idempotence import IdempotentTrainers, says_idempotent

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
PROMISE = {"x-idempotent-turns": "true"}


@pytest.mark.parametrize(("headers", "said"), [(PROMISE, True), ({}, False), ({"x-idempotent-turns": "no"}, False)])
def test_only_true_is_a_promise(headers: dict[str, str], said: bool) -> None:
    assert says_idempotent(headers) is said


def test_the_last_answer_of_a_port_counts() -> None:
    trainers = IdempotentTrainers()
    assert not trainers.said(A)
    trainers.hear(A, PROMISE)
    assert [trainers.said(A), trainers.said(B)] == [True, False]
    trainers.hear(A, {})
    assert not trainers.said(A)


def test_each_batch_is_told_once() -> None:
    trainers = IdempotentTrainers()
    assert not trainers.is_news("b", A)
    trainers.hear(A, PROMISE)
    assert [trainers.is_news(*of) for of in (("b", A), ("b", A), ("c", A), ("b", B))] == [True, False, True, False]
