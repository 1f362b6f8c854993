"""Protocol v1's request: `POST /rollout` runs one rollout, and is answered when the rollout has ended.

Fields, defaults, limits and error texts are the protocol's own. A valid request gets 200 however its rollout ends;
the answer is in `rolloutpool_common.protocol.v1.response`.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from rolloutpool_common.protocol.checks import RolloutName, check_server_url
from rolloutpool_common.protocol.messages import TextMessage
from rolloutpool_common.protocol.sampling import SamplingParams

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

    rollout_id: RolloutName
    """Not blank, at most 256 characters."""
    server_url: Annotated[str, AfterValidator(check_server_url)]
    """`http://` or `https://`; trailing slashes are removed."""
    messages: list[TextMessage] = Field(min_length=1)
    """At least one."""
    sampling_params: SamplingParams
    """May be `{}`; unknown keys are dropped."""
    tokenizer_name: str
    """Hub name, or a directory on the workers."""
    tokenizer_revision: str | None = None
    """Revision of the tokenizer on the hub."""
    tool_server_url: str | None = None
    """Accepted and not used; with `ROLLOUTPOOL_V1_TOOL_SERVERS` the URL of an MCP server."""
    max_turns: int = Field(default=10, ge=1, le=100)
    """Model calls at the most."""
    max_tokens_total: int = Field(default=8192, ge=1, le=1_000_000)
    """Sampled tokens at the most; the prompt does not count."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """`debug_trace`, and the hints that end a rollout."""
    callback_api_key: str | None = Field(default=None, repr=False)
    """Bearer key of the callback."""
