"""An imitation of SGLang's `/generate`, as its released source has it; no line of that is copied.

It is stricter than SGLang: it refuses fields that it does not know, and wants those that a caller must not leave out.
"""

import base64
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tests.support.imitated_engine import Asked, ImitatedEngine, Refusal, logprob_of, mask_of, running, served

from rolloutpool_common.rendering import ChatTokenizer

GENERATE = "/generate"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _SamplingParams(_Strict):
    max_new_tokens: int = Field(ge=1)
    """SGLang samples 128 ids without it."""
    temperature: float
    top_p: float
    top_k: int = -1
    min_p: float = 0.0
    sampling_seed: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] = []
    skip_special_tokens: bool = True


class _GenerateBody(_Strict):
    rid: str
    input_ids: list[int] = Field(min_length=1)
    sampling_params: _SamplingParams
    return_logprob: bool = False
    logprob_start_len: int = -1
    return_prompt_token_ids: bool = False
    session_id: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    return_routed_experts: bool = False
    routed_experts_start_len: int = Field(default=0, ge=0)
    return_sampling_mask: bool = False
    stream: Literal[False] = False


class SglangServer(ImitatedEngine):
    """An SGLang server."""

    def __init__(self, tokenizer: ChatTokenizer, answers: Sequence[str | Sequence[int]]) -> None:
        super().__init__(tokenizer, answers)
        self.sends_spans = True
        """Whether it sends the spans of weight versions, and not the last version alone."""
        self.cuts_to: int | None = None
        """With `--allow-auto-truncate`: to how many ids it cuts a prompt without a word."""
        self.salts: list[str | None] = []
        self.before = self._wait

    async def _wait(self, asked: Asked) -> None:
        # A paused SGLang answers nobody until it goes on.
        await self.paused.wait()

    async def generate(self, document: dict[str, Any]) -> dict[str, Any]:
        """Answers `/generate`."""
        try:
            body = _GenerateBody.model_validate(document)
        except ValidationError as error:
            raise Refusal(400, {"error": f"{error.error_count()} validation errors: {error}"}) from None
        sampling, prompt = body.sampling_params, body.input_ids
        if len(prompt) >= self.context:
            raise Refusal(
                400,
                {
                    "error": {
                        "message": f"The input ({len(prompt)} tokens) is longer than the model's context length "
                        f"({self.context} tokens)."
                    }
                },
            )
        if len(prompt) + sampling.max_new_tokens > self.context:
            why = f"Requested token count exceeds the model's maximum context length of {self.context} tokens."
            raise Refusal(400, {"error": {"message": why}})
        if len(prompt) >= self.context - 6:
            why = f"exceeds the maximum allowed length ({self.context - 6} tokens). Use a shorter input"
            raise Refusal(400, {"error": {"message": f"Input length ({len(prompt)} tokens) {why}"}})
        answer = await self.answer(body.rid, prompt, min(sampling.max_new_tokens, self.context - 2 - len(prompt)))
        self.salts.append(body.cache_salt)
        seen = prompt if self.cuts_to is None else prompt[-self.cuts_to :]
        finish: dict[str, Any] = {"type": answer.finish}
        match answer.finish:
            case "stop":
                finish["matched"] = answer.ids[-1] if answer.ids else None
            case "length":
                finish["length"] = sampling.max_new_tokens
            case "abort":
                finish |= {"message": "Aborted by a weight update", "status_code": None, "err_type": None}
        meta: dict[str, Any] = {
            "id": body.rid,
            "finish_reason": finish,
            "prompt_tokens": len(seen),
            "completion_tokens": len(answer.ids),
            "cached_tokens": 0,
            "reasoning_tokens": 0,
            "num_retractions": 0,
            "weight_version": self.version,
        }
        if self.sends_spans:
            meta["weight_versions"] = answer.spans
        if body.return_logprob:
            meta["output_token_logprobs"] = [
                [logprob, i, None] for i, logprob in zip(answer.ids, answer.logprobs, strict=True)
            ]
            meta["output_token_logprobs_length"] = len(answer.ids)
        if body.return_routed_experts and self.routes and answer.ids:
            if body.routed_experts_start_len > len(prompt):
                raise Refusal(400, {"error": "routed_experts_start_len must be in [0, prompt_tokens]"})
            rows = self.experts([*prompt, *answer.ids], body.routed_experts_start_len)
            meta["routed_experts"] = base64.b64encode(rows.astype("<i4").tobytes()).decode()
        if body.return_sampling_mask and self.masks:
            meta["output_token_sampling_mask"] = [mask_of(i) for i in answer.ids]
            meta["output_token_sampling_logprobs"] = [logprob_of(i) / 2 for i in answer.ids]
        reply: dict[str, Any] = {
            "text": self._tokenizer.decode(answer.ids),
            "output_ids": answer.ids,
            "meta_info": meta,
        }
        return {**reply, "prompt_token_ids": seen} if body.return_prompt_token_ids else reply

    def models(self) -> Any:
        """Answers `/v1/models`."""
        card = {"id": "policy", "object": "model", "max_model_len": self.context}
        return {"object": "list", "data": [card]} if self.tells_context else None

    def model_info(self) -> Any:
        """Answers `/model_info`."""
        return {"model_path": "policy", "is_generation": True, "weight_version": self.version}


@contextlib.asynccontextmanager
async def sglang_server(tokenizer: ChatTokenizer, *answers: str | Sequence[int]) -> AsyncIterator[SglangServer]:
    """Serves a policy that says these things, turn by turn, until the block ends."""
    engine = SglangServer(tokenizer, answers)
    async with serve_sglang(engine):
        yield engine


@contextlib.asynccontextmanager
async def serve_sglang(engine: SglangServer, port: int = 0) -> AsyncIterator[None]:
    """Serves an engine until the block ends; at a free port where it is 0."""
    gets = {"/v1/models": engine.models, "/model_info": engine.model_info}
    async with running(served(engine, {GENERATE: engine.generate}, gets, port)):
        yield
