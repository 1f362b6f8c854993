"""The callback: what a worker asks of the trainer at `/v1/chat/completions`, and what it takes for an answer.

The request has exactly nine keys in the order of `CompletionsRequest`, nulls included (the batch API's extra
sampling keys follow them). Headers may be added, body keys never.
"""

from typing import Any

from pydantic import BaseModel, Field, model_validator

from rolloutpool_common.protocol.messages import Message

__all__ = [
    "HEADER_ATTEMPT",
    "HEADER_DIGEST",
    "HEADER_ECHO_DIGEST",
    "HEADER_ECHO_PREFIX",
    "HEADER_EDITED",
    "HEADER_FINGERPRINT",
    "HEADER_IDEMPOTENCY",
    "HEADER_KEEPS_IDS",
    "HEADER_POLICY_VERSION",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
]

HEADER_IDEMPOTENCY = "Idempotency-Key"
"""`<rollout uid>/<turn>`: the same key is the same turn, whichever worker asks. A turn that is asked once more with
the other mask, after a 422, has the key `<rollout uid>/<turn>/2`."""
HEADER_ATTEMPT = "X-Rollout-Attempt"
"""Which attempt asks (from 1); a trainer refuses a lower one than it has seen."""
HEADER_DIGEST = "X-Request-Digest"
"""blake2b-128 of the request body: the same key with another digest is another request, hence 409."""
HEADER_POLICY_VERSION = "X-Policy-Version"
"""On the reply: which version of the policy sampled this turn."""

HEADER_ECHO_PREFIX = "X-Echo-Prefix-Length"
"""On the request: the pool knows the prompt's first so many ids. On the reply: `prompt_token_ids` leaves them out."""
HEADER_ECHO_DIGEST = "X-Echo-Prefix-Digest"
"""blake2b-128 (hex) of these ids as little-endian uint32. The trainer compares it with that of *its own* ids, and
leaves them out only where the two are equal."""
HEADER_EDITED = "X-History-Edited"
"""`1`: the agent edited the history, so it is to be rendered whole, and the mask covers the whole new prompt: one zero
for each of its ids."""
HEADER_KEEPS_IDS = "X-Keeps-Token-Ids"
"""On the reply: `true` from a trainer that keeps sampled ids, `false` from one that renders history again."""
HEADER_FINGERPRINT = "X-Tokenizer-Fingerprint"
"""On the reply: `<sha256 of tokenizer.json>/<sha256 of the template>/<transformers version>`."""


class CompletionsRequest(BaseModel):
    """One turn, asked of the policy."""

    model: str = "default"
    messages: list[Message]
    rollout_id: str
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True
    response_mask: list[int] | None = None
    """Zeros for what was put between the last sampled token and this generation point; null where there is nothing."""


class CompletionsChoice(BaseModel):
    """The sampled turn as a message."""

    message: Message
    index: int = 0
    finish_reason: str | None = "stop"


class CompletionsResponse(BaseModel):
    """The trainer's reply. Other keys are ignored."""

    id: str
    object: str = "chat.completion"
    model: str = "default"
    created: int
    choices: list[CompletionsChoice]
    token_ids: list[int]
    """What the policy sampled in this turn, [R]."""
    logprobs: list[float]
    """Log-probability of each sampled token, [R]."""
    prompt_token_ids: list[int] | None = None
    """The whole prompt that the policy saw, [P]. Protocol v1 requires it; without it nothing can be proved."""
    policy_version: str | None = Field(default=None, coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _only_objects(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise ValueError("the reply must be a JSON object")
        return body
