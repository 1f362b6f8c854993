"""ChatChannel: how a rollout of the Osmosis wire asks its controller for a turn.

What stands at the URL is OpenAI's chat completions and nothing more: messages and tools go out, a message comes back.
The controller keeps the ids that it samples, so a reply has none that we could prove a mask with, and none are read.

The body has `model`, `messages` and `tools`, and no sampling parameters: the wire has no place for them, so the
controller decides them. Nulls are left out, and arguments of calls are text, as OpenAI's own servers want it. All else
(headers, repetitions, breakers, limits) is as with a callback.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_common.protocol.completions import CompletionsChoice
from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.callback import OFF_LOOP_BYTES, CallbackChannel
from rolloutpool_worker.policy.repeated_echo import EchoText
from rolloutpool_worker.policy.reply import POLICY_VERSION, Reply
from rolloutpool_worker.policy.turn_client import TurnAnswer

MODEL = "default"


class ChatReply(BaseModel):
    """Holds what is read of a chat completion."""

    choices: list[CompletionsChoice] = Field(min_length=1)


class ChatChannel(CallbackChannel):
    """Asks the controller of one rollout for its turns."""

    path = "/chat/completions"
    shown: Sequence[Mapping[str, Any]] = ()
    """The definitions of the tools that the policy may call."""

    def body(self, messages: MessageBytes, zeros: int, prompt_ids: list[int] | None = None) -> TurnBody:
        """Writes a request; there is no mask on this wire, and there are no ids."""
        del zeros, prompt_ids
        request: dict[str, Any] = {"model": MODEL, "messages": [_plain(part) for part in messages.parts]}
        # OpenAI refuses an empty list.
        if self.shown:
            request["tools"] = self.shown
        data = orjson.dumps(request)
        return TurnBody(data, hashlib.blake2b(data, digest_size=16).hexdigest())

    async def _read(self, answer: TurnAnswer, where: str, known: EchoText | None) -> Reply:
        del known
        if len(answer.data) > OFF_LOOP_BYTES:
            return await asyncio.to_thread(parse_chat_reply, answer.data, answer.headers, where)
        return parse_chat_reply(answer.data, answer.headers, where)


def parse_chat_reply(data: bytes, headers: Mapping[str, str], where: str) -> Reply:
    """Parses and checks a chat completion."""
    try:
        choice = ChatReply.model_validate(orjson.loads(data)).choices[0]
    except orjson.JSONDecodeError as error:
        raise TrainerProtocolError(f"{where}: the reply is not JSON ({error.msg})") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise TrainerProtocolError(f"{where}: the reply is no chat completion: {path}: {first['msg']}") from None
    if choice.message.role != "assistant":
        raise TrainerProtocolError(f"{where}: the reply's message has role {choice.message.role}, not assistant")
    return Reply(
        message=choice.message.wire(),
        finish_reason=choice.finish_reason,
        token_ids=[],
        logprobs=[],
        prompt_token_ids=None,
        prefix=0,
        policy_version=headers.get(POLICY_VERSION),
        keeps_ids=None,
        fingerprint=None,
    )


def _plain(part: bytes) -> dict[str, Any]:
    """Takes what is null out of a message in normal form."""
    message = {key: value for key, value in orjson.loads(part).items() if value is not None}
    # Our templates want the tool's name with its result; OpenAI's messages have no place for it.
    if message["role"] == "tool":
        message.pop("name", None)
    for call in message.get("tool_calls") or ():
        if not isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = orjson.dumps(call["function"]["arguments"]).decode()
    return message
