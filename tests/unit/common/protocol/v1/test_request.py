"""Protocol v1's request: its defaults, and which fields it checks."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolloutpool_common.protocol.v1.request import RolloutRequest

BODY: dict[str, Any] = {
    "rollout_id": "r",
    "server_url": "http://trainer:8081/",
    "messages": [{"role": "user", "content": "5 + 3"}],
    "sampling_params": {},
    "tokenizer_name": "tiny",
}


def test_what_is_left_out_has_the_protocol_s_defaults() -> None:
    request = RolloutRequest.model_validate({**BODY, "unknown": 1})
    assert (request.max_turns, request.max_tokens_total, request.metadata) == (10, 8192, {})
    assert request.server_url == "http://trainer:8081"


@pytest.mark.parametrize(
    "change",
    [{"rollout_id": " "}, {"server_url": "trainer"}, {"messages": []}, {"max_turns": 0}, {"max_tokens_total": 0}],
)
def test_a_field_that_cannot_be_used_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        RolloutRequest.model_validate({**BODY, **change})
    assert [error["loc"] for error in refused.value.errors()] == [tuple(change)]


def test_a_refusal_and_a_log_line_hold_no_key() -> None:
    request = RolloutRequest.model_validate({**BODY, "callback_api_key": "MARKER"})
    assert "MARKER" not in repr(request)
    with pytest.raises(ValidationError) as refused:
        RolloutRequest.model_validate({**BODY, "rollout_id": 7, "callback_api_key": "MARKER"})
    assert "MARKER" not in str(refused.value)
