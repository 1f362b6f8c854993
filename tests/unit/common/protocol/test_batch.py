"""The batch API's documents: what is accepted, what is a fault, and where trainers are."""

from typing import Any

from rolloutpool_common.protocol.batch import TrainerPorts
from rolloutpool_common.protocol.options import RolloutSpec

ITEM: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}


def test_worker_i_of_a_trainer_listens_on_base_port_plus_i() -> None:
    ports = TrainerPorts(host="trainer-0", workers=4)
    assert ports.urls() == [f"http://trainer-0:{8081 + i}" for i in range(4)]
    assert TrainerPorts(host="[::1]", base_port=9, scheme="https").urls() == ["https://[::1]:9"]
    assert TrainerPorts(host="h", base_port=65535).urls() == ["http://h:65535"]


def test_secrets_are_not_shown_with_a_spec() -> None:
    spec = RolloutSpec.model_validate(
        {
            "rollout_id": "r",
            "server_url": "http://h",
            "messages": ITEM["messages"],
            "sampling_params": {},
            "tokenizer_name": "t",
            "callback_api_key": "s3cret",
        }
    )
    assert "s3cret" not in repr(spec)
