"""Our traces, read by verifiers itself: `make test-trainers`."""

from typing import Any

import pytest
from tests.support.exported_rollouts import FORKED, ONE, PLAIN, failure, rollout

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.verifiers_trace import verifiers_trace

pytest.importorskip("verifiers", reason="verifiers has an environment of its own: make test-trainers")


def trace_of(result: RolloutResult, reward: float | None = None) -> Any:
    """The trace as verifiers parses it."""
    from verifiers.v1.trace import Trace

    return Trace.model_validate(verifiers_trace(result, reward, task={"answer": "2"}))


def test_a_branch_is_the_sample() -> None:
    trace = trace_of(PLAIN, 0.5)
    (branch,) = trace.branches
    assert branch.token_ids == [1, 2, 3, *ONE["response_ids"]]
    assert branch.sampled_mask == [False] * 3 + [flag == 1 for flag in ONE["response_mask"]]
    assert branch.logprobs == [0.0] * 3 + ONE["response_logprobs"]
    assert trace.reward == 0.5
    assert trace.ok


def test_a_fork_has_two_branches() -> None:
    second = FORKED.samples[1].model_dump()
    second["segments"][0]["turn"] = 2
    trace = trace_of(rollout(5, FORKED.samples[0].model_dump(), second, alignment="forked"))
    assert [branch.token_ids for branch in trace.branches] == [
        [1, 2, 100, 101],
        [1, 2, 9, 9, 9, 100, 101, 102, 103],
    ]


def test_it_can_be_written_and_read_again() -> None:
    from verifiers.v1.trace import Trace

    trace = trace_of(rollout(1, ONE, **failure("policy")), 0.0)
    again = Trace.model_validate_json(trace.model_dump_json())
    assert [node.token_ids for node in again.nodes] == [node.token_ids for node in trace.nodes]
    assert again.errors[0].message == "The trainer is gone."
