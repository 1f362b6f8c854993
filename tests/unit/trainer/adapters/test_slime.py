"""slime's rollout function, against the fields of its samples (slime 624b824a8)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.api_documents import failed, result, version_segment
from tests.support.stub_pool import StubPool
from tests.support.trainer_contracts import RolloutFnTrainOutput, SlimeSample, installed

from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.slime import rollout_function

ARGUMENTS = SimpleNamespace(
    rollout_batch_size=2, rollout_temperature=1.0, rollout_top_p=0.9, rollout_max_response_len=32
)


class DataSource:
    """Groups of two, as slime's buffer gives them; it remembers what came back."""

    def __init__(self) -> None:
        self.given = 0
        self.returned: list[list[SlimeSample]] = []

    def get_samples(self, count: int) -> list[list[SlimeSample]]:
        groups = []
        for _ in range(count):
            number, self.given = self.given, self.given + 1
            groups.append([SlimeSample(group_index=number, index=2 * number + i, prompt=f"q{number}") for i in (0, 1)])
        return groups

    def add_samples(self, groups: list[list[SlimeSample]]) -> None:
        self.returned += groups


def generate(driver: PoolDriver, source: DataSource, **more: Any) -> RolloutFnTrainOutput:
    with installed("slime.rollout.base_types", RolloutFnTrainOutput=RolloutFnTrainOutput):
        function = rollout_function(driver, lambda rollout: float(rollout.index), decode=str, **more)
        output: RolloutFnTrainOutput = function(ARGUMENTS, 0, source)
    return output


def test_whole_groups_come_back_filled(pool: StubPool, driver: PoolDriver, ends: Callable[..., None]) -> None:
    forked = {"samples": result(0)["samples"] * 2, "alignment": "forked"}
    ends([version_segment("v3"), {"finish_reason": "length"}, forked, {}])
    output = generate(driver, DataSource())
    assert [[sample.index for sample in group] for group in output.samples] == [[0, 1], [2, 2, 3]]
    assert [[sample.rollout_id for sample in group] for group in output.samples] == [[0, 1], [2, 2, 3]]
    first = output.samples[0][0]
    assert (first.tokens, first.response_length, first.loss_mask) == ([1, 2, 3, 4], 2, [1, 1])
    assert (first.rollout_log_probs, first.weight_versions, first.reward) == ([-0.5, -0.5], ["v3"], 0.0)
    assert (first.prompt, first.response, first.group_index) == ("q0", "[3, 4]", 0)
    assert [sample.status.value for sample in output.samples[0]] == ["completed", "truncated"]
    assert output.metrics == {"pool/groups_aborted": 0}
    rollouts = pool.requests[0].body["rollouts"]
    assert [item["group"] for item in rollouts] == ["0", "0", "1", "1"]
    assert rollouts[0]["sampling_params"] == {"temperature": 1.0, "top_p": 0.9, "max_tokens": 32}


def test_a_group_that_was_lost_goes_back_and_another_is_taken(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}, failed(), {}, {}], [failed()], [{}, {}])
    source = DataSource()
    output = generate(driver, source)
    assert [group[0].group_index for group in output.samples] == [1, 2]
    assert [[sample.status.value for sample in group] for group in source.returned] == [["aborted", "aborted"]]
    assert output.metrics == {"pool/groups_aborted": 1}


def test_evaluation_is_left_to_slime(driver: PoolDriver) -> None:
    with pytest.raises(NotImplementedError, match="eval-function-path"):
        rollout_function(driver, lambda rollout: 0.0)(ARGUMENTS, 0, DataSource(), evaluation=True)


def test_where_there_is_no_slime_the_output_is_miles_s(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}, {}, {}, {}])
    with installed("miles.rollout.base_types", RolloutFnTrainOutput=RolloutFnTrainOutput):
        output = rollout_function(driver, lambda rollout: 0.0)(ARGUMENTS, 0, DataSource())
    assert isinstance(output, RolloutFnTrainOutput)
