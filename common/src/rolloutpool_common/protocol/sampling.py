"""Sampling parameters.

Protocol v1 silently drops keys that it does not know, and its clients may rely on it. The batch API never drops:
what it does not know is passed through to the trainer as it is.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

RESERVED_CALLBACK_KEYS = frozenset({"model", "messages", "rollout_id", "response_mask", "prompt_token_ids"})


class SamplingParams(BaseModel):
    """How the policy samples one turn (protocol v1)."""

    temperature: float = Field(default=1.0, ge=0, le=2)
    """Sent on to the trainer, like the others."""
    top_p: float = Field(default=1.0, ge=0, le=1)
    """Sent on."""
    max_tokens: int = Field(default=512, ge=1, le=32768)
    """Most tokens to sample in one turn. Trainers may ignore it and use their model's length."""
    stop: list[str] | None = None
    """Strings that end a turn."""
    logprobs: bool = True
    """Sent on; the pool needs log-probabilities in any case."""


class BatchSamplingParams(SamplingParams):
    """v1's parameters, and any other key (top_k, seed, min_p …), which reaches the trainer unchanged."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _no_reserved_keys(self) -> "BatchSamplingParams":
        taken = sorted(RESERVED_CALLBACK_KEYS & set(self.model_extra or {}))
        if taken:
            raise ValueError(f"{', '.join(taken)}: set by the pool in each callback; remove from sampling_params")
        return self

    def extra(self) -> dict[str, Any]:
        """Return the keys that protocol v1 does not have."""
        return dict(self.model_extra or {})
