"""Protocol v1: `POST /rollout`, one rollout per request, answered when it has ended.

A valid request gets 200 whatever becomes of it; fields, defaults, limits and texts are the protocol's own.
How a result becomes this answer, quirks included, is in `rolloutpool_common.protocol.v1.response`.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, JsonValue, field_validator

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.sampling import SamplingParams

__all__ = [
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "V1Status",
    "check_rollout_id",
    "check_server_url",
]

_EXAMPLE: dict[str, JsonValue] = {
    "rollout_id": "job7-step12-idx3-9f2c",
    "server_url": "http://trainer:8081",
    "messages": [{"role": "user", "content": "Calculate 15 * 23"}],
    "sampling_params": {"temperature": 0.7, "max_tokens": 512},
    "tokenizer_name": "rolloutpool/tiny",
    "max_turns": 10,
}


def check_rollout_id(value: str) -> str:
    """The id unchanged, or ValueError: blank, or longer than 256 characters."""
    if not value.strip():
        raise ValueError("rollout_id must be non-empty")
    if len(value) > 256:
        raise ValueError("rollout_id must be at most 256 characters")
    return value


def check_server_url(value: str) -> str:
    """The URL without trailing slashes, or ValueError when it is not http(s)."""
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"server_url must be an HTTP/HTTPS URL, got: {value}")
    return value.rstrip("/")


class RolloutRequest(BaseModel):
    """One rollout (protocol v1). Unknown fields are ignored."""

    model_config = {"json_schema_extra": {"examples": [_EXAMPLE]}, "hide_input_in_errors": True}

    rollout_id: str
    server_url: str
    messages: list[Message] = Field(min_length=1)
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


class V1Status(StrEnum):
    """Protocol v1 knows two outcomes."""

    COMPLETED = "COMPLETED"
    ERROR = "ERROR"


class RolloutMetrics(BaseModel):
    """Protocol v1's eight numbers. Latencies are wall milliseconds."""

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    """Sum over calls of the prompt's length."""
    response_tokens: int = 0
    """Sum over calls of the sampled tokens."""
    max_context_tokens: int = 0
    """On v1 the same sum of sampled tokens, 0 on errors; the result record has the true maximum."""


class RolloutResponse(BaseModel):
    """Protocol v1's answer; all keys are always present, in this order."""

    rollout_id: str
    status: V1Status
    final_messages: list[Message] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)
