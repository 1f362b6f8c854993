"""The scripted model's replies in the forms that peers ask for: the same messages, ids and logprobs as everybody gets.

A peer says by the path which form it wants, and names its rollout in the body:

1. `/plain/v1/chat/completions`: a chat completion with messages alone, as any endpoint gives it.
2. `/vllm/v1/chat/completions`: the same, with sampled ids and logprobs where vLLM puts them.
3. `/nemo/v1/chat/completions`: the same, with ids in the message, where NeMo RL's own server puts them.
4. `/vllm/inference/v1/generate`: token ids in, token ids out. The turn is known by the length of the prompt.

For example, `POST /vllm/v1/chat/completions` with `"rollout_id":"3.0.0.0.silent.8"` and one assistant message is
answered with turn 2 of conversation 0 of 3 turns.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import orjson
from benchmarks.conversations import Turn, conversation
from benchmarks.load import TrainerManner

_PATH = re.compile(rb"^(?:POST|GET) /(plain|vllm|nemo)/(v1/chat/completions|inference/v1/generate|v1/models) ")
_ROLLOUT = re.compile(rb'(?<!\\)"(?:rollout_id|cache_salt)": ?"([0-9][^"]*)"')
_ASSISTANT = re.compile(rb'(?<!\\)"role": ?"assistant"')
_PROMPT = re.compile(rb'"token_ids": ?\[([^\]]*)\]')
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Form(StrEnum):
    """How a reply is laid out."""

    PLAIN = "plain"
    """A chat completion with messages alone."""
    VLLM = "vllm"
    """A chat completion with ids and logprobs, as vLLM writes them."""
    NEMO = "nemo"
    """A chat completion whose message has the ids, as NeMo RL's server writes them."""
    GENERATE = "generate"
    """Token ids in, token ids out."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout as a trainer takes it."""

    ids: tuple[int, ...]
    """The first prompt, then every token that was sampled or came between."""
    mask: tuple[int, ...]
    """1 where the policy sampled the id, else 0; as long as `ids`."""


def base_url(port: int, form: Form) -> str:
    """Returns what an OpenAI client takes as its base URL to get this form."""
    prefix = Form.VLLM if form is Form.GENERATE else form
    return f"http://127.0.0.1:{port}/{prefix.value}/v1"


def form_of(head: bytes) -> Form | None:
    """Returns the form that a request's path asks for; None if the request is not a peer's."""
    path = _PATH.match(head)
    if path is None:
        return None
    return Form.GENERATE if path[2] != b"v1/chat/completions" else Form(path[1].decode())


def answer(head: bytes, body: bytes, tokenizer: str) -> tuple[float, bytes] | None:
    """Returns how many seconds to wait, and the response; None if the request is not a peer's."""
    form = form_of(head)
    if form is None:
        return None
    named = _ROLLOUT.search(body)
    if named is None:
        # `GET /v1/models`: a peer asks once how long a prompt may be, and accepts that it is not told.
        return 0.0, _NOT_FOUND
    turns, variant, characters, latency_ms, trainer, _ = named[1].split(b".")
    key = int(turns), int(variant), int(characters), tokenizer, TrainerManner(trainer.decode())
    if form is Form.GENERATE:
        prompt = _PROMPT.search(body)
        turn = _turns_by_length(*key)[prompt[1].count(b",") + 1 if prompt else 0]
    else:
        turn = len(_ASSISTANT.findall(body))
    return int(latency_ms) / 1000, _replies(form, *key)[turn]


@lru_cache(maxsize=256)
def _replies(
    form: Form, turns: int, variant: int, characters: int, tokenizer: str, trainer: TrainerManner
) -> list[bytes]:
    return [reply(form, turn) for turn in conversation(turns, variant, characters, tokenizer, trainer)]


@lru_cache(maxsize=256)
def _turns_by_length(
    turns: int, variant: int, characters: int, tokenizer: str, trainer: TrainerManner
) -> dict[int, int]:
    told = conversation(turns, variant, characters, tokenizer, trainer)
    return {len(_content(turn)["prompt_token_ids"]): number for number, turn in enumerate(told)}


def reply(form: Form, turn: Turn) -> bytes:
    """Returns the HTTP response of a turn in one of the forms."""
    told = _content(turn)
    prompt, sampled, logprobs = told["prompt_token_ids"], told["token_ids"], told["logprobs"]
    message = dict(told["choices"][0]["message"])
    tokens = [
        {"token": f"token_id:{id_}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for id_, logprob in zip(sampled, logprobs, strict=True)
    ]
    choice: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
    if form is Form.GENERATE:
        choice |= {"finish_reason": "stop", "token_ids": sampled, "logprobs": {"content": tokens}}
        return _response({"request_id": told["id"], "choices": [choice]})
    body = {
        **{key: told[key] for key in ("id", "object", "model", "created")},
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(sampled),
            "total_tokens": len(prompt) + len(sampled),
        },
    }
    choice["message"] = message
    if form is Form.VLLM:
        choice |= {"token_ids": sampled, "logprobs": {"content": tokens}}
        body["prompt_token_ids"] = prompt
    if form is Form.NEMO:
        message |= {
            "prompt_token_ids": prompt,
            "generation_token_ids": sampled,
            "generation_log_probs": logprobs,
        }
        choice["message"] = message
    return _response({**body, "choices": [choice]})


def expected(turns: list[Turn]) -> Sample:
    """Returns the sample that a trainer should be given for a conversation whose trainer keeps ids."""
    ids: list[int] = []
    mask: list[int] = []
    for turn in turns:
        told = _content(turn)
        prompt, sampled = told["prompt_token_ids"], told["token_ids"]
        mask += [0] * (len(prompt) - len(ids)) + [1] * len(sampled)
        ids = prompt + sampled
    return Sample(tuple(ids), tuple(mask))


def _content(turn: Turn) -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads(turn.whole.partition(b"\r\n\r\n")[2])
    return content


def _response(body: dict[str, Any]) -> bytes:
    content = orjson.dumps(body)
    lines = ("HTTP/1.1 200 OK", "content-type: application/json", f"content-length: {len(content)}", "", "")
    return "\r\n".join(lines).encode() + content
