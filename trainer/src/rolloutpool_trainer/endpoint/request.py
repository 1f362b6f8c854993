"""One request of the callback, read and checked before any session hears of it.

The body is the protocol's nine keys and whatever else the sender's sampling parameters hold; `response_mask` is kept
as it was parsed, because only its raw values tell true from 1. The headers are optional: a pool of protocol v1 alone
sends none, and then a turn has no identity beyond its place in the session.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from rolloutpool_common.protocol.completions import (
    HEADER_ATTEMPT,
    HEADER_DIGEST,
    HEADER_ECHO_DIGEST,
    HEADER_ECHO_PREFIX,
    HEADER_EDITED,
    HEADER_IDEMPOTENCY,
    CompletionsRequest,
)
from rolloutpool_common.protocol.messages import Message
from rolloutpool_trainer.endpoint.errors import EndpointError

__all__ = ["TurnRequest", "message_digest", "parse_request"]


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """A well-formed request for one turn."""

    request: CompletionsRequest
    mask: object
    """`response_mask` as parsed from JSON, not validated."""
    extra: dict[str, Any]
    """Keys of the body beyond the protocol's."""
    uid: str | None
    """The pool's id of the rollout; None without Idempotency-Key."""
    turn: int | None
    """The turn that the key names; None without Idempotency-Key."""
    attempt: int | None
    digest: str
    """The same turn with another digest is another request."""
    history: tuple[bytes, ...]
    """A digest per message, so that a session can tell appended from edited without keeping the text."""
    size: int
    """Bytes of the body."""
    edited: bool
    """Whether the agent says that it edited the history; the mask then covers the whole prompt."""
    echo: tuple[int, str] | None
    """Prefix length and digest of the ids that need not be sent back."""


def parse_request(headers: Mapping[str, str], body: bytes) -> TurnRequest:
    """The request.

    Raises:
        EndpointError: 400 for a body that is no JSON object or a header that cannot be read, 422 for keys or values
            that the protocol does not have.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EndpointError(400, "bad_json", f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise EndpointError(400, "bad_json", "the body must be a JSON object")
    mask = document.pop("response_mask", None)
    try:
        request = CompletionsRequest.model_validate(document)
    except ValidationError as error:
        faults = [
            {"path": ".".join(map(str, fault["loc"])), "message": fault["msg"]}
            for fault in error.errors(include_input=False, include_url=False)
        ]
        raise EndpointError(422, "bad_request", "the body is not a completions request", faults=faults) from None
    if not request.messages:
        raise EndpointError(422, "bad_request", "messages is empty; send the whole conversation")
    if not request.rollout_id:
        raise EndpointError(422, "bad_request", "rollout_id is empty; it names the session that keeps the tokens")
    uid, turn = _key(headers.get(HEADER_IDEMPOTENCY))
    return TurnRequest(
        request=request,
        mask=mask,
        extra={key: value for key, value in document.items() if key not in CompletionsRequest.model_fields},
        uid=uid,
        turn=turn,
        attempt=_attempt(headers.get(HEADER_ATTEMPT)),
        digest=headers.get(HEADER_DIGEST) or hashlib.blake2b(body, digest_size=16).hexdigest(),
        history=tuple(message_digest(message) for message in request.messages),
        size=len(body),
        edited=headers.get(HEADER_EDITED) == "1",
        echo=_echo(headers.get(HEADER_ECHO_PREFIX), headers.get(HEADER_ECHO_DIGEST)),
    )


def message_digest(message: Message) -> bytes:
    """16 bytes by which a message is recognised: nulls, absent keys and empty content are the same."""
    wire = {key: value for key, value in message.model_dump(exclude_none=True).items() if value not in ("", [])}
    return hashlib.blake2b(orjson.dumps(wire, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _key(value: str | None) -> tuple[str | None, int | None]:
    if value is None:
        return None, None
    # `/2` asks the same turn again with the other mask, after the first was refused.
    uid, _, turn = value.removesuffix("/2" if value.count("/") > 1 else "").rpartition("/")
    if not uid or "/" in uid or not turn.isdecimal() or not turn.isascii() or int(turn) < 1:
        raise EndpointError(
            400, "bad_header", f"{HEADER_IDEMPOTENCY} must be <rollout uid>/<turn from 1>, or that and /2"
        )
    return uid, int(turn)


def _echo(prefix: str | None, digest: str | None) -> tuple[int, str] | None:
    if prefix is None or digest is None:
        return None
    if not prefix.isdecimal() or not prefix.isascii():
        raise EndpointError(400, "bad_header", f"{HEADER_ECHO_PREFIX} must be a number of ids")
    return int(prefix), digest


def _attempt(value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or not value.isascii() or int(value) < 1:
        raise EndpointError(400, "bad_header", f"{HEADER_ATTEMPT} must be a number from 1")
    return int(value)
