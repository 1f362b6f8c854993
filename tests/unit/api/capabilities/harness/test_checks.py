"""Options that a program which leads a rollout cannot obey."""

from typing import Any

import pytest

from rolloutpool_api.capabilities.harness.checks import HarnessCheck

EXTERNAL = {"external": True}


@pytest.mark.parametrize(
    ("document", "own", "paths"),
    [
        ({}, {}, []),
        ({}, {"environment": {"name": "game"}, "restartable": True}, []),
        ({}, {"harness": EXTERNAL, "agent": "tool_calls", "restartable": False, "environment": None}, []),
        ({"defaults": {"harness": EXTERNAL}}, {"environment": {"name": "game"}}, ["rollouts[0].environment"]),
        ({"defaults": {"harness": EXTERNAL}}, {"harness": None, "environment": {"name": "game"}}, []),
        ({"defaults": {"restartable": True}}, {"harness": EXTERNAL}, ["rollouts[0].restartable"]),
        ({"trainer": {"attach": ["routed_experts"]}}, {"harness": EXTERNAL}, ["rollouts[0].attach"]),
        ({"trainer": "http://t"}, {"harness": EXTERNAL, "agent": "mine"}, ["rollouts[0].agent"]),
        ({}, {"harness": EXTERNAL, "context": {"limit_tokens": 16}}, ["rollouts[0].context"]),
        ({"on_stale": "restart"}, {"harness": EXTERNAL}, ["rollouts[0]"]),
        ({"on_stale": "restart"}, {}, []),
        ({"defaults": 5}, "x", []),
    ],
)
def test_what_clashes_with_a_harness_is_a_fault(document: dict[str, Any], own: Any, paths: list[str]) -> None:
    check = HarnessCheck()
    check.see_document(document)
    check.see_rollout(0, own, None)
    assert [fault.path for fault in check.faults.listed] == paths
