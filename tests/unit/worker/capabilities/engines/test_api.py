"""What both engines write alike."""

from typing import Any

import pytest
from tests.support.conversations import spec_of

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.capabilities.engines.api import sampling_fields


def spec(**sampling: Any) -> RolloutSpec:
    return spec_of(protocol="vllm", sampling_params=sampling)


def test_parameters_that_only_the_batch_knows_go_along() -> None:
    found = sampling_fields(spec(temperature=0.5, top_k=20, stop=["\n"], stop_token_ids=[7]), [9, 7])
    assert found == {"temperature": 0.5, "top_p": 1.0, "top_k": 20, "stop": ["\n"], "stop_token_ids": [7, 9]}


@pytest.mark.parametrize("name", ["n", "stream", "best_of", "max_new_tokens", "detokenize", "echo"])
def test_parameters_that_would_change_the_reply_are_refused(name: str) -> None:
    with pytest.raises(RequestFault, match=name):
        sampling_fields(spec(**{name: 2}), [])


@pytest.mark.parametrize("stops", ["9", [9.0], [None], {"9": 1}])
def test_stop_ids_are_integers(stops: Any) -> None:
    with pytest.raises(RequestFault, match="stop_token_ids"):
        sampling_fields(spec(stop_token_ids=stops), [])
