"""What a document is checked for beyond its models is seen rollout by rollout."""

from typing import Any

import pytest
from tests.support.api_documents import worker

from rolloutpool_api.checks import Catalog, NameCheck, StalenessCheck
from rolloutpool_common.protocol.batch import BatchRequest, RolloutItem
from rolloutpool_common.protocol.workers import Worker


def test_a_catalog_holds_what_live_workers_announce() -> None:
    live = Worker.model_validate(worker(environments=["game"]))
    dead = Worker.model_validate(worker(alive=False, agents=["other"]))
    found = Catalog.of([live, dead])
    assert found == Catalog(
        frozenset({"add"}), frozenset({"tool_calls"}), frozenset({"task_completion"}), frozenset({"game"})
    )
    assert Catalog.of([dead]) is None


def test_values_of_a_wrong_type_are_left_to_the_models() -> None:
    check = NameCheck(Catalog(frozenset(), frozenset(), frozenset()))
    check.see_document({"defaults": 5})
    check.see_rollout(0, "x", None)
    check.see_rollout(1, {"agent": 5, "tools": "add", "metadata": []}, None)
    assert check.faults.total == 0


ENGINE = {"server_urls": ["http://e"], "protocol": "vllm"}
TRAINER = {"server_urls": ["http://t"]}


@pytest.mark.parametrize(
    ("envelope", "item", "paths"),
    [
        ({"trainer": ENGINE}, {}, []),
        ({"trainer": ENGINE}, {"server_url": "http://t"}, ["rollouts[0]"]),
        ({"trainer": ENGINE}, {"protocol": "callback"}, ["rollouts[0]"]),
        ({"trainer": ENGINE, "defaults": {"protocol": "sglang"}}, {"server_url": "http://t"}, []),
        ({"trainer": TRAINER}, {}, ["rollouts[0]"]),
        ({"trainer": TRAINER, "defaults": {"protocol": "vllm"}}, {}, []),
        ({"trainer": TRAINER}, {"server_url": "http://e", "protocol": "vllm"}, []),
        ({"defaults": {"server_url": "http://e", "protocol": "vllm"}}, {}, []),
        ({"defaults": {"server_url": "http://t"}}, {}, ["rollouts[0]"]),
        ({"trainer": TRAINER, "on_stale": "drop"}, {}, []),
        ({"trainer": ENGINE, "run": None}, {}, ["max_staleness"]),
    ],
)
def test_only_what_an_engine_samples_can_begin_again(
    envelope: dict[str, Any], item: dict[str, Any], paths: list[str]
) -> None:
    messages = {"messages": [{"role": "user"}]}
    known = {"run": "r", "max_staleness": 1, "on_stale": "restart", "rollouts": [messages], **envelope}
    check = StalenessCheck(BatchRequest.model_validate(known))
    check.see_document(known)
    check.see_rollout(0, {**messages, **item}, RolloutItem.model_validate({**messages, **item}))
    assert [fault.path for fault in check.faults.listed] == paths
