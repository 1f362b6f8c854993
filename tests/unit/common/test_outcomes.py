"""States are terminal or not, and every failure category has one name on the wire."""

import pytest

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus


def test_only_queued_running_and_grading_can_still_change() -> None:
    assert {status for status in RolloutStatus if not status.terminal} == {
        RolloutStatus.QUEUED,
        RolloutStatus.RUNNING,
        RolloutStatus.GRADING,
    }


@pytest.mark.parametrize("names", [RolloutStatus, FinishReason, FailureKind, Boundary, Category])
def test_names_on_the_wire_are_lower_case_and_unique(names: type[RolloutStatus]) -> None:
    values = [member.value for member in names]
    assert values == [value.lower() for value in values]
    assert len(set(values)) == len(values)


def test_protocol_v1_s_own_categories_keep_their_names() -> None:
    own = [
        "tokenizer_error",
        "rate_limited",
        "trainer_server_error",
        "trainer_client_error",
        "trainer_error",
        "network_error",
        "tool_error",
        "internal_error",
        "validation_error",
    ]
    assert [category.value for category in Category][:9] == own


def test_a_failure_survives_json_and_cannot_be_changed() -> None:
    failure = Failure(
        kind=FailureKind.INFRA,
        boundary=Boundary.TRAINER,
        category=Category.RATE_LIMITED,
        message="m",
        retryable=True,
        http_status=429,
        turn=3,
    )
    assert Failure.model_validate_json(failure.model_dump_json()) == failure
    with pytest.raises(ValueError, match="frozen"):
        setattr(failure, "turn", 4)  # noqa: B010  a plain assignment is refused by mypy already
