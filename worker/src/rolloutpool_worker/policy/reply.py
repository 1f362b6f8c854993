"""A trainer's reply to one turn, parsed and checked.

A reply is accepted only as a whole: JSON, an assistant message, as many log-probabilities as token ids, ids that are
integers from 0, and log-probabilities in the bounds of `CompletionsResponse`. Anything else is a `TrainerProtocolError`
that names the position. Whether the ids mean what they should is checked later, by the conversation, which has the
tokenizer and the ledger.

Most replies have the usual form, and `_plain_reply` reads them by a few comparisons, in a fifth of the time of
pydantic's models. What it does not know at once is for the models to read or to refuse, so it never decides what is
wrong. `test_reply.py` holds both to the same answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_common.protocol.completions import HIGHEST_LOGPROB, LOWEST_LOGPROB, CompletionsResponse
from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_common.protocol.turn_headers import (
    HEADER_ECHO_PREFIX,
    HEADER_FINGERPRINT,
    HEADER_KEEPS_IDS,
    HEADER_POLICY_VERSION,
)
from rolloutpool_worker.policy.repeated_echo import EchoText, read

POLICY_VERSION, _ECHO_PREFIX, _KEEPS_IDS, _FINGERPRINT = (
    name.lower() for name in (HEADER_POLICY_VERSION, HEADER_ECHO_PREFIX, HEADER_KEEPS_IDS, HEADER_FINGERPRINT)
)
_OF_MESSAGE = frozenset({"role", "content", "tool_calls", "tool_call_id"})
_CALL = TypeAdapter(ToolCall).validator.validate_python
_INTEGERS, _FLOATS = {int}, {float}


@dataclass(frozen=True)
class SampledPart:
    """A run of a turn's ids that was sampled in one call, by one version of the weights."""

    ids: list[int]
    logprobs: list[float]
    version: str | None
    """The engine's name for the weights; `<=NAME` where it names only those at the call's end."""


@dataclass(slots=True)
class Reply:
    """One sampled turn."""

    message: dict[str, Any]
    """The assistant message in normal form."""
    finish_reason: str | None
    token_ids: list[int]
    """What the policy sampled, [R]."""
    logprobs: list[float]
    """Of these tokens, [R]."""
    prompt_token_ids: list[int] | None
    """The prompt's ids after the first `skipped` of them; None where the trainer sends none."""
    prefix: int
    """How many ids at the start of the prompt the trainer left out, because their digest was ours."""
    policy_version: str | None
    keeps_ids: bool | None
    """Whether the trainer says that it continues sampled ids; None where it says nothing."""
    fingerprint: str | None
    """The trainer's tokenizer; None where it does not say."""
    repeated: int = 0
    """How many ids at the start of the prompt have the text of an earlier reply, so that they were not read again."""
    echo_text: EchoText | None = None
    """The text of the whole prompt's ids; None where it is not known, or a prefix was left out."""
    parts: tuple[SampledPart, ...] = ()
    """The same ids in the parts in which an engine has sampled them; empty where a trainer has answered."""
    aborts: int = 0
    """How often the engine stopped in the middle of the turn."""
    beside: Sequence[Any] = ()
    """What the policy keeps beside the result (`conversation.branch.KeptBeside`)."""
    calls: Sequence[ToolCall] | None = None
    """The calls in `message`; None where nobody has read them yet."""

    @property
    def skipped(self) -> int:
        """How many ids at the start of the prompt are proved to be ours, and are not in `prompt_token_ids`."""
        return self.prefix + self.repeated


def parse_reply(
    data: bytes, headers: Mapping[str, str], where: str, *, needs_prompt_ids: bool, known: EchoText | None = None
) -> Reply:
    """Parses and checks the reply to one turn."""
    # With a prefix, the list does not begin where the prompt does, so it has nothing in common with an earlier one.
    prefix = as_count(headers.get(_ECHO_PREFIX)) or 0
    try:
        try:
            document, repeated, text = (orjson.loads(data), 0, None) if prefix else read(data, known)
        except orjson.JSONDecodeError:
            # Again as a whole, because its error is to be about all of it.
            document, repeated, text = orjson.loads(data), 0, None
        reply = _plain_reply(document)
        if reply is None:
            try:
                reply = _checked(document, where)
            except (ValidationError, TrainerProtocolError):
                if not repeated:
                    raise
                # Read as a whole, because then the error names the position in the whole list.
                document, repeated, text = orjson.loads(data), 0, None
                reply = _checked(document, where)
    except orjson.JSONDecodeError as error:
        raise TrainerProtocolError(f"{where}: the reply is not JSON ({error.msg})") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise TrainerProtocolError(f"{where}: the reply does not fit the protocol: {path}: {first['msg']}") from None
    if needs_prompt_ids and reply.prompt_token_ids is None:
        raise TrainerProtocolError(f"{where}: the reply lacks prompt_token_ids")
    reply.prefix, reply.repeated, reply.echo_text = prefix, repeated, text
    reply.policy_version = headers.get(POLICY_VERSION) or reply.policy_version
    reply.fingerprint = headers.get(_FINGERPRINT)
    if (keeps := headers.get(_KEEPS_IDS)) is not None:
        reply.keeps_ids = {"true": True, "false": False}.get(keeps.lower())
    return reply


def _plain_reply(document: Any) -> Reply | None:
    """Reads a reply of the usual form; None where it may have another one, or a fault."""
    try:
        (choice,) = document["choices"]
        message = choice["message"]
        ids, logprobs, prompt = document["token_ids"], document["logprobs"], document.get("prompt_token_ids")
        calls = message.get("tool_calls")
        content, answers = message.get("content"), message.get("tool_call_id")
        finish, version = choice.get("finish_reason", "stop"), document.get("policy_version")
        usual = (
            type(document["id"]) is str
            and type(document["created"]) is int
            and type(document.get("object", "")) is str
            and type(document.get("model", "")) is str
            and type(choice.get("index", 0)) is int
            and message["role"] == "assistant"
            and (content is None or type(content) is str)
            and answers is None
            and (finish is None or type(finish) is str)
            and (version is None or type(version) is str)
            and len(ids) == len(logprobs)
            and _are_ids(ids)
            and (prompt is None or _are_ids(prompt))
            and (not logprobs or _are_logprobs(logprobs))
        )
        if not usual:
            return None
        wire = {"role": "assistant", "content": content, "tool_calls": None, "tool_call_id": None}
        read_calls: list[ToolCall] = []
        if calls is not None:
            if type(calls) is not list:
                return None
            read_calls = [_CALL(call) for call in calls]
            wire["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    # An object is copied, because a tool may change what it is called with.
                    "function": {"name": call.function.name, "arguments": arguments}
                    if type(arguments := call.function.arguments) is str
                    else call.function.model_dump(),
                }
                for call in read_calls
            ]
        if not message.keys() <= _OF_MESSAGE:
            wire |= {key: value for key, value in message.items() if key not in _OF_MESSAGE}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Reply(wire, finish, ids, logprobs, prompt, 0, version, None, None, calls=read_calls)


def _are_ids(ids: Any) -> bool:
    """Whether this is a list of integers from 0."""
    return type(ids) is list and (not ids or (set(map(type, ids)) == _INTEGERS and bool(min(ids) >= 0)))


def _are_logprobs(values: Any) -> bool:
    if type(values) is not list or set(map(type, values)) != _FLOATS:
        return False
    return bool(min(values) >= LOWEST_LOGPROB and max(values) <= HIGHEST_LOGPROB)


def _checked(document: Any, where: str) -> Reply:
    reply = CompletionsResponse.model_validate(document)
    if not reply.choices:
        raise TrainerProtocolError("empty choices in the reply of " + where)
    choice = reply.choices[0]
    # The message goes into the history as the policy's own, and templates render by role.
    if choice.message.role != "assistant":
        raise TrainerProtocolError(f"{where}: the reply's message has role {choice.message.role}, not assistant")
    if len(reply.logprobs) != len(reply.token_ids):
        raise TrainerProtocolError(
            f"{where}: {len(reply.token_ids)} token_ids, but {len(reply.logprobs)} logprobs; they must pair up"
        )
    for name, ids in (("token_ids", reply.token_ids), ("prompt_token_ids", reply.prompt_token_ids or ())):
        if ids and (lowest := min(ids)) < 0:
            raise TrainerProtocolError(f"{where}: {name} has a negative id at {ids.index(lowest)}: {lowest}")
    return Reply(
        message=choice.message.wire(),
        finish_reason=choice.finish_reason,
        token_ids=reply.token_ids,
        logprobs=reply.logprobs,
        prompt_token_ids=reply.prompt_token_ids,
        prefix=0,
        policy_version=reply.policy_version,
        keeps_ids=None,
        fingerprint=None,
        calls=choice.message.tool_calls or [],
    )


def as_count(value: str | None) -> int | None:
    """Reads a header that holds a number; None where it is missing or holds something else."""
    # `isdigit` is true of other scripts' digits too, and `int` refuses texts of some thousand digits with a ValueError.
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 10 else None
