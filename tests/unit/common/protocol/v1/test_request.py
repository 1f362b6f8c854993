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


def test_a_refusal_and_a_log_line_hold_no_key() -> None:
    request = RolloutRequest.model_validate({**BODY, "callback_api_key": "MARKER"})
    assert "MARKER" not in repr(request)
    with pytest.raises(ValidationError) as refused:
        RolloutRequest.model_validate({**BODY, "rollout_id": 7, "callback_api_key": "MARKER"})
    assert "MARKER" not in str(refused.value)
