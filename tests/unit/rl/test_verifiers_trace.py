"""Traces for verifiers: paths of messages whose ids, put together, are the samples. The real parser: tests/trainers."""

from typing import Any

import pytest
from tests.support.exported_rollouts import FORKED, MESSAGES, ONE, PLAIN, UNTRAINED, UPDATED, failure, rollout

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.verifiers_trace import verifiers_trace


def path(trace: dict[str, Any], leaf: int) -> list[dict[str, Any]]:
    """The nodes from the root to a leaf."""
    nodes: list[dict[str, Any]] = []
    place = leaf
    while True:
        node = trace["nodes"][place]
        nodes.insert(0, node)
        if node["parent"] is None:
            return nodes
        place = node["parent"]


def test_a_path_is_the_sample() -> None:
    trace = verifiers_trace(PLAIN, 0.5, task={"answer": "2"})
    nodes = path(trace, len(trace["nodes"]) - 1)
    assert [node["message"]["role"] for node in nodes] == [message["role"] for message in MESSAGES]
    assert [node["token_ids"] for node in nodes] == [[], [], [1, 2, 3], [100, 101], [], [102, 103, 104], [105]]
    assert [node["mask"] for node in nodes if node["token_ids"]] == [[False] * 3, [True] * 2, [False] * 3, [True]]
    assert [node.get("logprobs") for node in nodes if node.get("sampled")] == [[-0.5, -0.5], [-0.5]]
    assert nodes[3]["message"]["tool_calls"] == [{"id": "c1", "name": "add", "arguments": "{}"}] * 2
    assert trace["rewards"] == {"reward": {"score": 0.5}}
    assert (trace["ok"], trace["stop_condition"], trace["errors"]) == (True, "stop", [])
    assert trace["task"]["data"] == {"idx": 4, "prompt": None, "answer": "2"}


def test_a_fork_is_another_path() -> None:
    second = FORKED.samples[1].model_dump()
    second["segments"][0]["turn"] = 2
    forked = rollout(5, FORKED.samples[0].model_dump(), second, alignment="forked")
    trace = verifiers_trace(forked, task={})
    assert [node["parent"] for node in trace["nodes"]].count(None) == 2
    nodes = path(trace, len(trace["nodes"]) - 1)
    assert [token for node in nodes for token in node["token_ids"]] == [1, 2, 9, 9, 9, 100, 101, 102, 103]
    assert trace["rewards"] == {"reward": None}


def test_a_turn_over_an_update_of_the_weights_is_one_node() -> None:
    assert verifiers_trace(rollout(4, UPDATED), task={}) == verifiers_trace(rollout(4, ONE), task={})


def test_failures_of_the_policy_are_told() -> None:
    trace = verifiers_trace(rollout(1, ONE, **failure("policy")), 0.0, task={})
    assert trace["ok"] is False
    assert trace["errors"] == [{"type": "network_error", "message": "The trainer is gone."}]


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(ExportRefused, match="2 turns, but 0 messages"):
        verifiers_trace(rollout(1, ONE, messages=MESSAGES[2:4]), task={})
    with pytest.raises(ExportRefused, match="not the policy's"):
        verifiers_trace(rollout(1, ONE, **failure("infra")), task={})
    assert verifiers_trace(rollout(1, UNTRAINED), task={})["nodes"] == []
