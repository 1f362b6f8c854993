"""The callback's bodies: what a worker asks of a trainer at `/v1/chat/completions`, and what it accepts as an answer.

A request has exactly the nine keys of `CompletionsRequest`, in this order and nulls included. The sampling parameters
that only the batch API knows follow them. Everything else is in headers (`turn_headers`), because protocol v1's
trainers refuse unknown keys. There are two exceptions. A fork's first turn has `prompt_token_ids`, and is asked again
without if the trainer refuses it. A turn that a trainer has refused as `unknown_session` is asked again with
`restore_session` (`PastTokens`). Workers write the body as bytes from the parts that `CompletionsRequest.frame` gives,
since the messages of the history are encoded once, not at every turn.

A reply's lists hold tens of thousands of numbers, so their checks run inside pydantic's core: strict types and bounds
cost 13 µs per thousand log-probabilities. A list is refused at its first wrong value, whose position is in the error.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field, Strict, model_validator

from rolloutpool_common.protocol.messages import TextMessage

RESTORE_SESSION = "restore_session"
"""The key of a request's body that holds `PastTokens`."""
UNKNOWN_SESSION = "unknown_session"
"""`error.type` of a trainer's 409: it has no session of this rollout, and would take `restore_session`."""

LOWEST_LOGPROB = -10_000.0
"""Some servers write -9999 for minus infinity. What is lower is no log-probability: no sampled token comes near it."""
HIGHEST_LOGPROB = 1e-3
"""A log-probability is at most 0. Rounding in half precision gives a little more."""

_TokenIds = Annotated[list[Annotated[int, Strict()]], Field(fail_fast=True)]
"""Integers only: `true`, `"5"` and `5.0` are mistakes of a trainer, not ids."""
_Logprobs = Annotated[
    list[Annotated[float, Field(strict=True, ge=LOWEST_LOGPROB, le=HIGHEST_LOGPROB, allow_inf_nan=False)]],
    Field(fail_fast=True),
]


class CompletionsRequest(BaseModel):
    """The body of a request for one turn."""

    model: str = "default"
    messages: list[TextMessage]
    rollout_id: str
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True
    response_mask: list[int] | None = None
    """Zeros for what was put between the last sampled token and this generation point; null where there is nothing."""

    def frame(self) -> dict[str, Any]:
        """The keys between `messages` and `response_mask`, which are the same at each turn of a rollout."""
        return self.model_dump(exclude={"model", "messages", "response_mask"})


class PastTokens(BaseModel):
    """The tokens of a rollout's turns so far, as the pool knows them, for a trainer that has forgotten its session.

    Example: the first prompt has 400 ids, turn 1 sampled 20, the next 30 are a tool's result, and turn 2 sampled 10.
    Then there are 460 ids, and `sampled` is [[400, 420], [450, 460]].
    """

    token_ids: Annotated[list[Annotated[int, Field(strict=True, ge=0, lt=2**32)]], Field(fail_fast=True)]
    """The current sample's context from its first id to the last sampled one; empty where nothing of it is sampled."""
    digest: str
    """blake2b-128 (hex) of these ids as little-endian uint32, as in `X-Echo-Prefix-Digest`."""
    sampled: list[tuple[Annotated[int, Strict()], Annotated[int, Strict()]]]
    """Start and end of what each turn sampled, in order; the last one ends with the ids."""


class CompletionsChoice(BaseModel):
    """The sampled turn as a message."""

    message: TextMessage
    index: int = 0
    finish_reason: str | None = "stop"


class CompletionsResponse(BaseModel):
    """The trainer's reply. Other keys are ignored."""

    id: str
    object: str = "chat.completion"
    model: str = "default"
    created: int
    choices: list[CompletionsChoice]
    token_ids: _TokenIds
    """What the policy sampled in this turn, [R]."""
    logprobs: _Logprobs
    """Log-probability of each sampled token, [R], between -10,000 and 0.001."""
    prompt_token_ids: _TokenIds | None = None
    """The whole prompt that the policy saw, [P]. Protocol v1 requires it; without it nothing can be proved."""
    policy_version: str | None = Field(default=None, coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _only_objects(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise ValueError("the reply must be a JSON object")
        return body
