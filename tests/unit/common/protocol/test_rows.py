"""The row of a result: the figures that people sort and filter by."""

from typing import Any

from tests.support.finished_rollouts import forked, rollout

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.rows import ENDED_FIELDS, row_values
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor


def row(result: RolloutResult) -> dict[str, Any]:
    return dict(zip(list(ENDED_FIELDS)[2:], row_values(result), strict=True))


def test_a_row_has_each_field_and_counts_what_the_samples_hold() -> None:
    result = forked()
    found = row(result)
    trained = sum(sum(one.response_mask) for one in result.samples)
    assert found["sampled_tokens"] == trained
    assert found["tokens"] == sum(len(one.prompt_ids) + len(one.response_ids) for one in result.samples)
    assert found["mean_logprob"] == -0.5
    assert found["response_lengths"] == [len(one.response_ids) for one in result.samples]
    assert (found["drift"], found["drifted_turns"]) == (["thinking_stripped"], 1)
    assert found["policy_versions"] == ["step-7"]


def test_the_row_of_an_expired_rollout_says_what_it_waited_for() -> None:
    waited = Waiting(waits_for=WaitsFor.TRAINER, message="turn 3: no answer for more than 45 s")
    found = row(rollout(status=RolloutStatus.EXPIRED, waited_for=waited))
    assert (found["status"], found["category"], found["message"]) == ("expired", None, waited.message)
