"""Conversations whose every byte is known beforehand, so that the stub trainer computes nothing during a measurement.

A rollout's id names its conversation: `turns.variant.result_characters.latency_ms.manner.serial`. In each turn the
policy calls a tool, either to add a number or to look a page up; in the last turn it answers in words. The token ids
are those of one tokenizer, encoded as its template writes them, so that a trainer that keeps ids and one that renders
history again count the same. Only where the trainer does render again, its policy writes calls without spaces, so that
their render has other ids than were sampled.
"""

import hashlib
import json
from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
from benchmarks.load import Load, TrainerManner
from benchmarks.lookup import LOOK_UP, passage

from rolloutpool_common.protocol.turn_headers import (
    HEADER_ECHO_PREFIX,
    HEADER_FINGERPRINT,
    HEADER_KEEPS_IDS,
    write_fingerprint,
)
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer, rerender
from rolloutpool_worker.tools import Tool, calculator

VARIANTS = 8
"""Different conversations of each length; enough that nothing is served from a cache of one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the trainer answers in one turn."""

    whole: bytes
    """The HTTP response that echoes the whole prompt."""
    digest: bytes
    """Of the known prefix, in hex, as a pool offers it; empty on turn 1."""
    delta: bytes
    """The HTTP response that leaves this prefix out."""


def rollout_id(load: Load, serial: int) -> str:
    """The id by which the stub trainer knows what to answer."""
    parts = load.turns, serial % VARIANTS, load.result_characters, load.latency_of(serial), load.trainer.value, serial
    return ".".join(map(str, parts))


def messages(load: Load, serial: int) -> list[dict[str, Any]]:
    """Returns the prompt of a rollout."""
    return _prompt(load.turns, serial % VARIANTS, load.result_characters)


def tool_names(load: Load) -> list[str]:
    """Returns the names of the tools that the policy may call."""
    return [tool.name for tool in _tools(load.result_characters)]


@lru_cache(maxsize=256)
def conversation(
    turns: int,
    variant: int,
    result_characters: int = 0,
    tokenizer_name: str = TINY,
    trainer: TrainerManner = TrainerManner.DECLARES,
) -> list[Turn]:
    """Returns the replies of all turns. The first use takes seconds where results are long."""
    tokenizer = _tokenizer(tokenizer_name)
    tools = [tool.definition.model_dump() for tool in _tools(result_characters)]
    history = _prompt(turns, variant, result_characters)
    prompt = tokenizer.render_prompt(history, tools=tools)
    rerenders = trainer is TrainerManner.RERENDERS
    value, step = _numbers(variant)
    replies = []
    known = 0
    for turn in range(1, turns + 1):
        last = turn == turns
        text, message = _answer(value) if last else _call(value, step, turn, result_characters, compact=rerenders)
        sampled = tokenizer.encode(text)
        if tokenizer.close_id is not None:
            sampled.append(tokenizer.close_id)
        headers = {HEADER_KEEPS_IDS: "true"} if trainer is TrainerManner.DECLARES else {}
        replies.append(_turn(tokenizer, prompt, known, sampled, message, headers))
        if not last:
            value += step
            content = passage(value, result_characters) if result_characters else str(value)
            name = message["tool_calls"][0]["function"]["name"]
            result = {"role": "tool", "content": content, "tool_call_id": f"call_{turn}", "name": name}
            history += [message, result]
            known = len(prompt) + len(sampled)
            if rerenders:
                prompt = rerender(tokenizer, history, tools=tools)
                continue
            delta = tokenizer.render_delta([result], sampled=[sampled[-1]], tools=tools)
            prompt = [*prompt, *sampled, *delta.close_ids, *delta.glue_ids]
    return replies


@lru_cache(maxsize=1)
def _tokenizer(name: str) -> ChatTokenizer:
    return load_tokenizer(name)


def _tools(result_characters: int) -> tuple[Tool, ...]:
    calculators = (calculator.ADD, calculator.SUBTRACT, calculator.MULTIPLY, calculator.DIVIDE)
    return (LOOK_UP,) if result_characters else calculators


def _prompt(turns: int, variant: int, result_characters: int) -> list[dict[str, Any]]:
    start, step = _numbers(variant)
    ask = f"Add {step} to {start}, {turns - 1} times, with a call each time."
    if result_characters:
        ask = f"Look up every page from {start + step} on that is {step} further, {turns - 1} of them."
    return [{"role": "user", "content": ask}]


def _numbers(variant: int) -> tuple[int, int]:
    return 11 + 7 * variant, 3 + 2 * variant


def _call(value: int, step: int, turn: int, result_characters: int, *, compact: bool) -> tuple[str, dict[str, Any]]:
    name, given = calculator.ADD.name, {"a": value, "b": step}
    if result_characters:
        name, given = LOOK_UP.name, {"page": value + step, "characters": result_characters}
    arguments = json.dumps(given)
    written = json.dumps({"name": name, "arguments": given}, separators=(",", ":") if compact else None)
    text = f"<tool_call>\n{written}\n</tool_call>"
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return text, {"role": "assistant", "content": "", "tool_calls": [call]}


def _answer(value: int) -> tuple[str, dict[str, Any]]:
    text = f"The result is {value}."
    return text, {"role": "assistant", "content": text}


def _turn(
    tokenizer: ChatTokenizer,
    prompt: list[int],
    known: int,
    sampled: list[int],
    message: dict[str, Any],
    headers: dict[str, str],
) -> Turn:
    body = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "model": "default",
        "created": 0,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "token_ids": sampled,
        # Of many digits, as real ones are: they are most of what has to be parsed.
        "logprobs": [-0.001 - (id_ * 0.6180339887498949) % 3 for id_ in sampled],
    }
    ours = tokenizer.fingerprint
    headers = {**headers, HEADER_FINGERPRINT: write_fingerprint(ours)} if headers else {}
    whole = _response({**body, "prompt_token_ids": prompt}, headers)
    if not known or not headers:
        return Turn(whole, b"", whole)
    # The digest is over little-endian uint32, which array("I") is on every machine that runs this.
    digest = hashlib.blake2b(array("I", prompt[:known]).tobytes(), digest_size=16).hexdigest().encode()
    shorter = _response({**body, "prompt_token_ids": prompt[known:]}, {**headers, HEADER_ECHO_PREFIX: str(known)})
    return Turn(whole, digest, shorter)


def _response(body: dict[str, Any], headers: dict[str, str]) -> bytes:
    content = orjson.dumps(body)
    lines = [
        "HTTP/1.1 200 OK",
        "content-type: application/json",
        f"content-length: {len(content)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join((*lines, "", "")).encode() + content
