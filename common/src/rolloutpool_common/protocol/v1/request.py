"""Protocol v1's request: `POST /rollout` runs one rollout, and is answered when the rollout has ended.

Fields, defaults, limits and error texts are the protocol's own. A valid request gets 200 however its rollout ends;
the answer is in `rolloutpool_common.protocol.v1.response`.
"""

from typing import Any

from pydantic import BaseModel, Field, JsonValue, field_validator

from rolloutpool_common.protocol.checks import check_rollout_id, check_server_url
from rolloutpool_common.protocol.messages import TextMessage
from rolloutpool_common.protocol.sampling import SamplingParams

__all__ = ["RolloutRequest"]

_EXAMPLE: dict[str, JsonValue] = {
    "rollout_id": "job7-step12-idx3-9f2c",
    "server_url": "http://trainer:8081",
    "messages": [{"role": "user", "content": "Calculate 15 * 23"}],
    "sampling_params": {"temperature": 0.7, "max_tokens": 512},
    "tokenizer_name": "rolloutpool/tiny",
    "max_turns": 10,
}


class RolloutRequest(BaseModel):
    """One rollout (protocol v1). Unknown fields are ignored."""

    model_config = {"json_schema_extra": {"examples": [_EXAMPLE]}, "hide_input_in_errors": True}

    rollout_id: str
    server_url: str
    messages: list[TextMessage] = Field(min_length=1)
    sampling_params: SamplingParams
    tokenizer_name: str
    tokenizer_revision: str | None = None
    tool_server_url: str | None = None
    max_turns: int = Field(default=10, ge=1, le=100)
    max_tokens_total: int = Field(default=8192, ge=1, le=1_000_000)
    metadata: dict[str, Any] = Field(default_factory=dict)
    callback_api_key: str | None = Field(default=None, repr=False)

    @field_validator("rollout_id")
    @classmethod
    def _rollout_id(cls, value: str) -> str:
        return check_rollout_id(value)

    @field_validator("server_url")
    @classmethod
    def _server_url(cls, value: str) -> str:
        return check_server_url(value)
