"""A trainer's reply to one turn, parsed and checked.

A reply is accepted only as a whole: JSON, an assistant message, as many log-probabilities as token ids, ids that are
integers from 0, and log-probabilities in the bounds of `CompletionsResponse`. Anything else is a `TrainerProtocolError`
that names the position. Whether the ids mean what they should is checked later, by the conversation, which has the
tokenizer and the ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_common.protocol.completions import CompletionsResponse
from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_common.protocol.turn_headers import (
    HEADER_ECHO_PREFIX,
    HEADER_FINGERPRINT,
    HEADER_KEEPS_IDS,
    HEADER_POLICY_VERSION,
)
from rolloutpool_common.store.attachments import PackedPiece
from rolloutpool_worker.policy.engine_reply import EnginePart
from rolloutpool_worker.policy.repeated_echo import EchoText, read

__all__ = ["Reply", "as_count", "parse_reply"]


@dataclass(frozen=True)
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
    parts: tuple[EnginePart, ...] = ()
    """The same ids in the parts in which an engine has sampled them; empty where a trainer has answered."""
    aborts: int = 0
    """How often the engine stopped in the middle of the turn."""
    attachments: tuple[PackedPiece, ...] = ()
    """What an engine has said of the ids besides, to be kept beside the result."""
    calls: Sequence[ToolCall] | None = None
    """The calls in `message`; None where nobody has read them yet."""

    @property
    def skipped(self) -> int:
        """How many ids at the start of the prompt are proved to be ours, and are not in `prompt_token_ids`."""
        return self.prefix + self.repeated


def parse_reply(
    data: bytes, headers: Mapping[str, str], where: str, *, needs_prompt_ids: bool, known: EchoText | None = None
) -> Reply:
    """Parses and checks the reply to one turn.

    Args:
        data: the whole body.
        headers: of the reply, whatever the case of their names.
        where: turn and URL, for the messages of errors.
        needs_prompt_ids: whether the reply must have `prompt_token_ids`, as protocol v1's must.
        known: text of prompt ids that the ledger has; a list that begins with it is read from there on.

    Raises:
        TrainerProtocolError: the reply cannot be used; the message says why.
    """
    # With a prefix, the list does not begin where the prompt does, so it has nothing in common with an earlier one.
    if not as_count(headers.get(HEADER_ECHO_PREFIX)):
        try:
            return _checked(*read(data, known), headers, where, needs_prompt_ids=needs_prompt_ids)
        except (orjson.JSONDecodeError, ValidationError, TrainerProtocolError):
            # Below it is read as a whole, and then the error names the position in the whole list.
            pass
    try:
        return _checked(orjson.loads(data), 0, None, headers, where, needs_prompt_ids=needs_prompt_ids)
    except orjson.JSONDecodeError as error:
        raise TrainerProtocolError(f"{where}: the reply is not JSON ({error.msg})") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise TrainerProtocolError(f"{where}: the reply does not fit the protocol: {path}: {first['msg']}") from None


def _checked(
    document: Any,
    repeated: int,
    echo_text: EchoText | None,
    headers: Mapping[str, str],
    where: str,
    *,
    needs_prompt_ids: bool,
) -> Reply:
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
    if needs_prompt_ids and reply.prompt_token_ids is None:
        raise TrainerProtocolError(f"{where}: the reply lacks prompt_token_ids")
    for name, ids in (("token_ids", reply.token_ids), ("prompt_token_ids", reply.prompt_token_ids or ())):
        if ids and (lowest := min(ids)) < 0:
            raise TrainerProtocolError(f"{where}: {name} has a negative id at {ids.index(lowest)}: {lowest}")
    return Reply(
        message=choice.message.wire(),
        finish_reason=choice.finish_reason,
        token_ids=reply.token_ids,
        logprobs=reply.logprobs,
        prompt_token_ids=reply.prompt_token_ids,
        prefix=as_count(headers.get(HEADER_ECHO_PREFIX)) or 0,
        policy_version=headers.get(HEADER_POLICY_VERSION) or reply.policy_version,
        keeps_ids={"true": True, "false": False}.get(headers.get(HEADER_KEEPS_IDS, "").lower()),
        fingerprint=headers.get(HEADER_FINGERPRINT),
        repeated=repeated,
        echo_text=echo_text,
        calls=choice.message.tool_calls or [],
    )


def as_count(value: str | None) -> int | None:
    """Reads a header that holds a number; None where it is missing or holds something else."""
    # `isdigit` is true of other scripts' digits too, and `int` refuses texts of some thousand digits with a ValueError.
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 10 else None
