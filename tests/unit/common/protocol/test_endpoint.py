"""Options that go with an endpoint."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolloutpool_common.protocol.batch import TrainerPorts, TrainerUrls
from rolloutpool_common.protocol.endpoint import EndpointOptions, LogprobsMode
from rolloutpool_common.protocol.options import RolloutOptions


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, None),
        ({"logprobs_mode": "raw"}, None),
        ({"protocol": "vllm"}, LogprobsMode.RAW),
        ({"protocol": "sglang"}, LogprobsMode.PROCESSED),
        ({"protocol": "vllm", "logprobs_mode": "processed"}, LogprobsMode.PROCESSED),
        ({"protocol": "sglang", "logprobs_mode": "raw"}, LogprobsMode.RAW),
    ],
)
def test_engines_have_defaults_of_their_own(options: dict[str, Any], mode: LogprobsMode | None) -> None:
    found = EndpointOptions.model_validate(options)
    assert found.reported_logprobs is mode
    assert found.token_in is (options.get("protocol") is not None)


def test_only_what_was_said_is_said_of_a_trainer() -> None:
    urls = TrainerUrls.model_validate({"server_urls": ["http://e"], "protocol": "vllm", "model": "policy"})
    assert urls.endpoint_fields() == {"protocol": "vllm", "model": "policy"}
    assert TrainerPorts.model_validate({"host": "e"}).endpoint_fields() == {}


@pytest.mark.parametrize(
    "options",
    [{"protocol": "tgi"}, {"protocol": None}, {"model": ""}, {"logprobs_mode": "maybe"}, {"response_template": 5}],
)
def test_faults(options: dict[str, Any]) -> None:
    for model in (EndpointOptions, RolloutOptions):
        with pytest.raises(ValidationError):
            model.model_validate(options)
