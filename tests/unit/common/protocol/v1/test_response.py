"""The protocol's exact words for every way in which a rollout can end."""

from typing import Any

import pytest
from tests.support.results import completed

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.protocol.v1.response import V1Result, V1Status, to_v1

SAID = [Message(role="user", content="q"), Message(role="assistant", content="a")]


def result(**fields: Any) -> RolloutResult:
    return completed(
        **{
            "messages": SAID,
            "num_llm_calls": 2,
            "num_tool_calls": 3,
            "prompt_tokens": 50,
            "response_tokens": 7,
            "max_context_tokens": 40,
            "spans": Spans(total_ms=10.0, llm_ms=5.0, tools_ms=2.0),
            **fields,
        }
    )


def failed(category: Category, message: str = "m", http_status: int | None = None, **fields: Any) -> RolloutResult:
    failure = Failure(
        kind=FailureKind.INFRA,
        boundary=Boundary.TRAINER,
        category=category,
        message=message,
        retryable=False,
        http_status=http_status,
    )
    return result(status=RolloutStatus.FAILED, finish_reason=FinishReason.ERROR, failure=failure, **fields)


@pytest.mark.parametrize(
    ("reason", "word", "kept"),
    [
        (FinishReason.STOP, "stop", 2),
        (FinishReason.LENGTH, "stop", 2),
        (FinishReason.STRATEGY, "stop", 2),
        (FinishReason.MAX_TURNS, "max_turns", 2),
        (FinishReason.MAX_ASSISTANT_TURNS, "max_turns", 2),
        (FinishReason.MAX_USER_TURNS, "max_turns", 2),
        (FinishReason.MAX_TOKENS, "max_tokens", 1),
        (FinishReason.BUDGET_TOKENS, "max_tokens", 1),
    ],
)
def test_each_end_has_one_of_three_words(reason: FinishReason, word: str, kept: int) -> None:
    trace = [{"turn": 1}, {"turn": 2}]
    answer = to_v1(result(finish_reason=reason, trace=trace), tokenizer_name="t", timeout_seconds=600.0)
    assert (answer.status, answer.finish_reason, answer.error_message) == (V1Status.COMPLETED, word, None)
    assert answer.final_messages == SAID[:kept]
    assert answer.extra_fields == {"trace": trace[:kept]}


def test_every_reason_of_a_completed_rollout_has_its_word() -> None:
    unfinished = {FinishReason.ERROR, FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.STALE}
    ends = set(FinishReason) - unfinished
    for reason in ends:
        assert to_v1(result(finish_reason=reason), tokenizer_name="t", timeout_seconds=1.0).finish_reason


@pytest.mark.parametrize(
    ("category", "status", "message", "text", "told"),
    [
        (
            Category.TOKENIZER_ERROR,
            None,
            "Tokenizer 'org/name' cannot be used: it has no chat template.",
            "Failed to load tokenizer: org/name: it has no chat template.",
            "tokenizer_error",
        ),
        (Category.RATE_LIMITED, 429, "m", "Trainer rate limit exceeded (429)", "rate_limited"),
        (
            Category.TRAINER_SERVER_ERROR,
            503,
            "m",
            "Trainer server error (status 503) - retryable",
            "trainer_server_error",
        ),
        (
            Category.TRAINER_CLIENT_ERROR,
            404,
            "m",
            "Trainer client error (status 404) - check request",
            "trainer_client_error",
        ),
        (Category.MASK_REFUSED, 422, "m", "Trainer client error (status 422) - check request", "trainer_client_error"),
        (Category.TRAINER_ERROR, 307, "m", "Trainer returned error (status 307)", "trainer_error"),
        (Category.NETWORK_ERROR, None, "m", "Network error communicating with trainer", "network_error"),
        (Category.TOOL_ERROR, None, "boom", "Failed to execute tools: boom", "tool_error"),
        (Category.INTERNAL_ERROR, None, "m", "Internal server error: internal_error: m", "internal_error"),
        (
            Category.TEMPLATE_REFUSED,
            None,
            "turn 1: no tools",
            "Internal server error: template_refused: turn 1: no tools",
            "internal_error",
        ),
        (Category.DRIFT, None, "m", "Internal server error: drift: m", "internal_error"),
        (
            Category.TRAINER_PROTOCOL_ERROR,
            None,
            "empty choices in the reply",
            "Internal server error: trainer_protocol_error: empty choices in the reply",
            "internal_error",
        ),
        (
            Category.TRAINER_PROTOCOL_ERROR,
            None,
            "no ids",
            "Invalid conversation state (possible context truncation): no ids",
            None,
        ),
    ],
)
def test_each_failure_has_the_protocol_s_words(
    category: Category, status: int | None, message: str, text: str, told: str | None
) -> None:
    answer = to_v1(
        failed(category, message, status, trace=[{"turn": 1}]), tokenizer_name="org/name", timeout_seconds=600.0
    )
    assert (answer.status, answer.finish_reason, answer.final_messages) == (V1Status.ERROR, None, [])
    assert answer.error_message == text
    # The trace goes with every failure but the trainer's statuses.
    kept = {"trace": [{"turn": 1}]} if status is None else {"http_status": status}
    assert answer.extra_fields == ({"error_category": told} if told else {}) | kept
    assert answer.metrics is not None
    assert (answer.metrics.num_llm_calls, answer.metrics.max_context_tokens) == (2, 0)


def test_a_timeout_has_no_metrics_and_names_the_limit() -> None:
    expired = result(status=RolloutStatus.EXPIRED, finish_reason=FinishReason.DEADLINE, trace=[{"turn": 1}])
    answer = to_v1(expired, tokenizer_name="t", timeout_seconds=600.0)
    assert (answer.error_message, answer.metrics, answer.extra_fields) == (
        "Rollout timeout exceeded (600.0s)",
        None,
        {},
    )


def test_a_cancelled_rollout_is_an_error_in_words_of_our_own() -> None:
    cancelled = result(status=RolloutStatus.CANCELLED, finish_reason=FinishReason.CANCELLED)
    answer = to_v1(cancelled, tokenizer_name="t", timeout_seconds=600.0)
    assert (answer.status, answer.error_message) == (V1Status.ERROR, "Rollout cancelled")


@pytest.mark.parametrize("category", list(Category))
def test_error_texts_are_bounded(category: Category) -> None:
    long = failed(category, "x" * 100_000)
    message = to_v1(long, tokenizer_name="t" * 5_000, timeout_seconds=1.0).error_message
    assert message is not None
    assert len(message) <= 1_000


@pytest.mark.parametrize(
    "made",
    [
        result(trace=[{"turn": 1}, {"turn": 2}], finish_reason=FinishReason.MAX_TOKENS),
        result(status=RolloutStatus.EXPIRED),
        result(status=RolloutStatus.CANCELLED, trace=[{"turn": 1}]),
        failed(Category.RATE_LIMITED, http_status=429),
        failed(Category.MASK_IMPOSSIBLE, "lost"),
    ],
)
def test_what_is_read_of_a_stored_result_is_enough(made: RolloutResult) -> None:
    stored = V1Result.model_validate_json(made.model_dump_json())
    answers = [to_v1(one, tokenizer_name="t", timeout_seconds=600.0).model_dump_json() for one in (made, stored)]
    assert answers[0] == answers[1]
