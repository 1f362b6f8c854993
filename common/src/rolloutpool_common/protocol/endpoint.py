"""Says what stands at a rollout's `server_url`: our callback, or an inference engine that is asked with token ids.

These fields go with the endpoint: beside `server_urls` in a batch's `trainer`, or beside a rollout's own `server_url`.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field

from rolloutpool_common.composition import EndpointFields


class EndpointProtocol(StrEnum):
    """How the policy is asked."""

    CALLBACK = "callback"
    """Messages go out; the trainer renders them, and answers with ids (`/v1/chat/completions`)."""
    VLLM = "vllm"
    """Ids go out, ids come back: vLLM's `/inference/v1/generate`, or else its `/v1/completions`."""
    SGLANG = "sglang"
    """Ids go out, ids come back: SGLang's `/generate`."""


class LogprobsMode(StrEnum):
    """Of which distribution an engine reports log-probabilities."""

    RAW = "raw"
    """The model's own, before temperature, penalties and top-p or top-k."""
    PROCESSED = "processed"
    """The one that was sampled from; but SGLang keeps in it what top-p, top-k and min-p leave out (`raw_logprobs`)."""


class EndpointOptions(EndpointFields):
    """How an endpoint is asked. All fields but `protocol` are for engines only."""

    protocol: EndpointProtocol = EndpointProtocol.CALLBACK
    """How the endpoint is asked: `callback`, or with token ids as `vllm` or `sglang`."""
    model: str | None = Field(default=None, min_length=1, max_length=256)
    """The model's name at the engine, a LoRA adapter's for instance; null lets the engine take its only one."""
    logprobs_mode: LogprobsMode | None = None
    """As the engine was started; null means its own default: raw for vLLM, processed for SGLang."""
    response_template: dict[str, Any] | str | None = None
    """How sampled text is parsed: a template in the form of transformers, or the name of a syntax (`hermes`,
    `qwen_xml`, `glm`, `deepseek`, `mistral`, `llama_json`); null finds out by the chat template."""

    @property
    def token_in(self) -> bool:
        """Whether the policy is asked with token ids."""
        return self.protocol is not EndpointProtocol.CALLBACK

    @property
    def reported_logprobs(self) -> LogprobsMode | None:
        """Returns which log-probabilities the endpoint reports; None for a callback, which does not say."""
        if not self.token_in:
            return None
        default = LogprobsMode.RAW if self.protocol is EndpointProtocol.VLLM else LogprobsMode.PROCESSED
        return self.logprobs_mode or default

    def endpoint_fields(self) -> dict[str, Any]:
        """Returns those of these fields that were set, as JSON has them."""
        return self.model_dump(mode="json", include=self.model_fields_set & EndpointOptions.model_fields.keys())
