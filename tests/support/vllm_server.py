"""An imitation of vLLM's token-in endpoints, as its released source has them; no line of that is copied.

It is stricter than vLLM: it refuses fields that it does not know, and it wants those that a caller must not leave out.
"""

import base64
import contextlib
import io
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tests.support.imitated_engine import Answer, ImitatedEngine, Refusal, mask_of, running, served

from rolloutpool_common.rendering import ChatTokenizer

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
NOT_STARTED_FOR = "The generate endpoint needs the server flag --enable-scale-out"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Shaping(_Strict):
    temperature: float
    top_p: float
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    stop: list[str] | None = None
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    max_tokens: int = Field(ge=1)
    """Without it, one endpoint samples 16 ids and the other as many as it can, so callers must say it."""


class _SamplingParams(_Shaping):
    logprobs: int
    routed_experts_prompt_start: int = Field(default=0, ge=0)
    detokenize: bool = True


class _GenerateBody(_Strict):
    request_id: str
    model: str | None = None
    token_ids: list[int] = Field(min_length=1)
    sampling_params: _SamplingParams
    stream: Literal[False] = False
    priority: int = 0
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    output_mode: Literal["tokens"] = "tokens"
    return_token_ids: bool | None = None


class _CompletionsBody(_Shaping):
    request_id: str
    model: str | None = None
    prompt: list[int] = Field(min_length=1)
    logprobs: int | None = None
    stream: Literal[False] = False
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    session_id: str | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool | None = None
    routed_experts_prompt_start: int = Field(default=0, ge=0)


class VllmServer(ImitatedEngine):
    """A vLLM server with one model, `policy`."""

    def __init__(self, tokenizer: ChatTokenizer, answers: Sequence[str | Sequence[int]]) -> None:
        super().__init__(tokenizer, answers)
        self.scale_out = True
        """Whether it was started with `--enable-scale-out`."""
        self.salts: list[str | None] = []

    async def generate(self, document: dict[str, Any]) -> dict[str, Any]:
        """Answers `/inference/v1/generate`."""
        if not self.scale_out:
            raise _refusal(403, "PermissionDeniedError", NOT_STARTED_FOR)
        body = self._checked(_GenerateBody, document)
        sampling = body.sampling_params
        # No check of the length here: the engine makes it, in words of its own.
        if len(body.token_ids) + sampling.max_tokens > self.context:
            why = (
                f"The prompt (length {len(body.token_ids)}) is longer than the maximum model length of {self.context}."
            )
            raise _refusal(400, "BadRequestError", why)
        answer = await self._sample(body.request_id, body.token_ids, sampling.max_tokens, body.cache_salt)
        return {
            "output_mode": "tokens",
            "request_id": f"generate-tokens-{body.request_id}",
            "model": "policy",
            "created": 1,
            "usage": _usage(body.token_ids, answer),
            "prompt_token_ids": body.token_ids if body.return_token_ids else None,
            "choices": [
                {
                    "index": 0,
                    "token_ids": answer.ids,
                    "finish_reason": answer.finish,
                    "stop_reason": None,
                    "logprobs": {
                        "content": [
                            {"token_id": i, "logprob": logprob, "rank": 1, "top_logprobs": []}
                            for i, logprob in zip(answer.ids, answer.logprobs, strict=True)
                        ]
                    },
                    "weight_versions": answer.spans,
                    "routed_experts": self._routed(body.token_ids, answer.ids, sampling.routed_experts_prompt_start),
                    "sampling_mask": [mask_of(i) for i in answer.ids] if self.masks else None,
                }
            ],
        }

    async def complete(self, document: dict[str, Any]) -> dict[str, Any]:
        """Answers `/v1/completions`."""
        body = self._checked(_CompletionsBody, document)
        if len(body.prompt) + body.max_tokens > self.context:
            raise _refusal(
                400,
                "BadRequestError",
                f"This model's maximum context length is {self.context} tokens. However, your prompt contains "
                f"{len(body.prompt)} input tokens.",
                "input_tokens",
            )
        answer = await self._sample(body.request_id, body.prompt, body.max_tokens, body.cache_salt)
        text = self._tokenizer.decode(answer.ids)
        return {
            "id": f"cmpl-{body.request_id}",
            "object": "text_completion",
            "created": 1,
            "model": "policy",
            "choices": [
                {
                    "index": 0,
                    "text": text,
                    "logprobs": None
                    if body.logprobs is None
                    else {
                        "text_offset": [0] * len(answer.ids),
                        "token_logprobs": answer.logprobs,
                        "tokens": [self._tokenizer.decode([i]) for i in answer.ids],
                        "top_logprobs": [None] * len(answer.ids),
                    },
                    "finish_reason": answer.finish,
                    "stop_reason": None,
                    "token_ids": answer.ids if body.return_token_ids else None,
                    "prompt_token_ids": body.prompt if body.return_token_ids else None,
                    "weight_versions": answer.spans if body.return_weight_versions else None,
                    "routed_experts": self._routed(body.prompt, answer.ids, body.routed_experts_prompt_start),
                }
            ],
            "usage": _usage(body.prompt, answer),
        }

    def _checked(self, model: type[Any], document: dict[str, Any]) -> Any:
        try:
            body = model.model_validate(document)
        except ValidationError as error:
            raise _refusal(400, "BadRequestError", f"{error.error_count()} validation errors: {error}") from None
        if body.model not in (None, "policy"):
            raise _refusal(404, "NotFoundError", f"The model `{body.model}` does not exist.", "model")
        return body

    def _routed(self, prompt: list[int], ids: list[int], start: int) -> str | None:
        if not self.routes or not ids:
            return None
        assert start < len(prompt), "a start behind the prompt has no meaning"
        file = io.BytesIO()
        np.save(file, self.experts([*prompt, *ids], start).astype(np.uint8))
        return base64.b64encode(file.getvalue()).decode()

    async def _sample(self, name: str, prompt: list[int], most: int, salt: str | None) -> Answer:
        if not self.paused.is_set():
            raise _refusal(503, "ServiceUnavailableError", "The engine is paused.")
        self.salts.append(salt)
        return await self.answer(name, prompt, most)

    def models(self) -> Any:
        """Answers `/v1/models`."""
        card = {"id": "policy", "object": "model", "max_model_len": self.context if self.tells_context else None}
        return {"object": "list", "data": [card]}

    def weights(self) -> Any:
        """Answers `/weight_info`; None as without the development mode."""
        return {"weight_version": self.version} if self.tells_version else None


def _usage(prompt: list[int], answer: Answer) -> dict[str, int]:
    n, m = len(prompt), len(answer.ids)
    return {"prompt_tokens": n, "completion_tokens": m, "total_tokens": n + m}


def _refusal(status: int, kind: str, message: str, param: str | None = None) -> Refusal:
    return Refusal(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


@contextlib.asynccontextmanager
async def vllm_server(tokenizer: ChatTokenizer, *answers: str | Sequence[int]) -> AsyncIterator[VllmServer]:
    """Serves a policy that says these things, turn by turn, until the block ends."""
    engine = VllmServer(tokenizer, answers)
    async with serve_vllm(engine):
        yield engine


@contextlib.asynccontextmanager
async def serve_vllm(engine: VllmServer, port: int = 0) -> AsyncIterator[None]:
    """Serves an engine until the block ends; at a free port where it is 0."""
    routes = {GENERATE: engine.generate, COMPLETIONS: engine.complete}
    async with running(served(engine, routes, {"/v1/models": engine.models, "/weight_info": engine.weights}, port)):
        yield
