"""What is said of a limit to the age of weights that cannot be kept."""

from typing import Any

import pytest

from rolloutpool_api.capabilities.runs.checks import StalenessCheck
from rolloutpool_common.protocol.batch import BatchRequest, RolloutItem

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
