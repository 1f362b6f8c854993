"""The answer to one turn, as it goes over the wire.

The pool may ask not to be sent ids that it has already: it names a prefix length and the digest of these ids. Where the
endpoint's own prefix has the same digest, `prompt_token_ids` begins after the prefix, and a header says so. At 128k
tokens that keeps a megabyte out of each answer.
"""

import time
import uuid
from dataclasses import dataclass
from typing import Any

import orjson

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.turn_headers import HEADER_ECHO_PREFIX, HEADER_POLICY_VERSION
from rolloutpool_common.tokens.arrays import id_digest
from rolloutpool_trainer.endpoint.policy import Generation
from rolloutpool_trainer.endpoint.request import TurnRequest


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The tokens of one turn."""

    prompt_ids: list[int]
    """[P]; what the policy saw."""
    token_ids: list[int]
    """[R]; what it sampled."""
    logprobs: list[float]
    """[R]"""


@dataclass(frozen=True, slots=True)
class TurnReply:
    """A turn's answer: body and headers."""

    body: bytes
    headers: dict[str, str]


def turn_head(model: str, message: Message, generation: Generation) -> dict[str, Any]:
    """Makes the answer in the form of OpenAI's chat completions, to which `turn_reply` adds the tokens."""
    # A turn that was cut at its length may have whole calls, but its reason to end is still the length.
    has_calls = generation.finish_reason == "stop" and message.tool_calls
    finish_reason = "tool_calls" if has_calls else generation.finish_reason
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message.wire(), "finish_reason": finish_reason}],
    }


def turn_reply(head: dict[str, Any], tokens: TurnTokens, policy_version: str | None, request: TurnRequest) -> TurnReply:
    """Completes the answer with its tokens, without the prompt ids that the request says it has."""
    headers = {} if policy_version is None else {HEADER_POLICY_VERSION: policy_version}
    prompt_ids = tokens.prompt_ids
    prefix, digest = (request.echo.prefix, request.echo.digest) if request.echo else (0, "")
    # The digest is that of our own ids: the pool's claim proves nothing about the prompt that the policy saw.
    if prefix and prefix <= len(prompt_ids) and id_digest(prompt_ids[:prefix]) == digest:
        headers[HEADER_ECHO_PREFIX] = str(prefix)
        prompt_ids = prompt_ids[prefix:]
    document = {**head, "token_ids": tokens.token_ids, "logprobs": tokens.logprobs, "prompt_token_ids": prompt_ids}
    return TurnReply(orjson.dumps(document), headers)
