"""The Osmosis wire's words for every way in which a rollout can end."""

from typing import Any

import pytest
from tests.support.results import completed

from rolloutpool_common.capabilities.osmosis.response import (
    OsmosisCategory,
    OsmosisRecord,
    OsmosisResult,
    OsmosisStatus,
    to_osmosis,
)
from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentReport
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import Alignment, Spans


def answered(**fields: Any) -> OsmosisResult:
    """The answer for a result, by way of its JSON, as it is stored."""
    result = completed(
        **{
            "labels": {"label": "38", "grade": "false"},
            "messages": [Message(role="user", content="q"), Message(role="assistant", content="a", name="x")],
            "alignment": Alignment.UNVERIFIED,
            "num_llm_calls": 2,
            "num_tool_calls": 3,
            "spans": Spans(total_ms=10.0, llm_ms=5.0, tools_ms=2.0),
            **fields,
        }
    )
    return to_osmosis(OsmosisRecord.model_validate_json(result.model_dump_json()))


def environment(reward: float | None) -> EnvironmentReport:
    return EnvironmentReport(name="game", crash=CrashEffect.STATELESS, steps=1, reward=reward, parts={"moves": 4.0})


def test_what_completed_is_a_sample() -> None:
    answer = answered()
    assert answer.status is OsmosisStatus.SUCCESS
    assert answer.sample is not None
    assert answer.sample.model_dump() == {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "name": "x"}],
        "label": "38",
        "reward": None,
        "remove_sample": False,
        "metrics": {
            "num_llm_calls": 2,
            "num_tool_calls": 3,
            "total_latency_ms": 10.0,
            "llm_latency_ms": 5.0,
            "tool_latency_ms": 2.0,
        },
        "extra_fields": {"uid": "b-0", "finish_reason": "stop", "alignment": "unverified"},
    }
    assert (answer.err_message, answer.err_category) == (None, None)


def test_the_environment_s_score_is_the_reward() -> None:
    answer = answered(environment=environment(0.5), labels={})
    assert answer.sample is not None
    assert (answer.sample.reward, answer.sample.label, answer.sample.metrics["moves"]) == (0.5, None, 4.0)


def test_the_grade_goes_before_the_environment_s_score() -> None:
    graded = answered(environment=environment(0.5), reward=0.25, reward_parts={"style": 1.0}, labels={})
    assert graded.sample is not None
    assert (graded.sample.reward, graded.sample.metrics["style"], graded.sample.metrics["moves"]) == (0.25, 1.0, 4.0)


def test_without_a_reward_what_was_to_be_graded_fails() -> None:
    answer = answered(environment=environment(None), labels={})
    assert (answer.status, answer.err_category, answer.sample) == (OsmosisStatus.FAILURE, "validation_error", None)
    assert answered(environment=environment(None)).status is OsmosisStatus.SUCCESS


@pytest.mark.parametrize(
    ("kind", "boundary", "category", "expected"),
    [
        (FailureKind.INFRA, Boundary.TRAINER, Category.NETWORK_ERROR, OsmosisCategory.HTTP_ERROR),
        (FailureKind.INFRA, Boundary.TRAINER, Category.TRAINER_PROTOCOL_ERROR, OsmosisCategory.HTTP_ERROR),
        (FailureKind.INFRA, Boundary.TRAINER, Category.LEASE_EXPIRED, OsmosisCategory.LEASE_EXPIRED),
        (FailureKind.REQUEST, Boundary.TRAINER, Category.TARGET_REFUSED, OsmosisCategory.VALIDATION_ERROR),
        (FailureKind.POLICY, Boundary.AGENT, Category.TOOL_ERROR, OsmosisCategory.AGENT_ERROR),
        (FailureKind.INFRA, Boundary.ENVIRONMENT, Category.ENVIRONMENT_LOST, OsmosisCategory.AGENT_ERROR),
        (FailureKind.INFRA, Boundary.GRADER, Category.GRADER_ERROR, OsmosisCategory.AGENT_ERROR),
        (FailureKind.INFRA, Boundary.GRADER, Category.GRADE_LATE, OsmosisCategory.TIMEOUT),
        (FailureKind.INFRA, Boundary.WORKER, Category.POISON, OsmosisCategory.INTERNAL_ERROR),
    ],
)
def test_a_failure_has_one_of_six_categories(
    kind: FailureKind, boundary: Boundary, category: Category, expected: OsmosisCategory
) -> None:
    failure = Failure(kind=kind, boundary=boundary, category=category, message="why", retryable=False)
    answer = answered(status=RolloutStatus.FAILED, finish_reason=FinishReason.ERROR, failure=failure)
    assert answer.model_dump() == {
        "rollout_id": "r",
        "status": OsmosisStatus.FAILURE,
        "sample": None,
        "err_message": "why",
        "err_category": expected,
    }
