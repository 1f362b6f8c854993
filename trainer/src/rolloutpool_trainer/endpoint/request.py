"""Parses and checks one call before any session is looked up.

The body has the protocol's nine keys, and whatever else the sender's sampling parameters hold. `response_mask` is kept
as it was parsed, because validation would turn `true` into 1. The headers are optional: a pool that speaks protocol v1
alone sends none, and then a turn is known by its place in the session only.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from rolloutpool_common.protocol.completions import RESTORE_SESSION, CompletionsRequest, PastTokens
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.turn_headers import Echo, TurnHeaders, TurnKey
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.policy import GenerateParams


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """A well-formed request for one turn."""

    body: CompletionsRequest
    mask: object
    """`response_mask` as parsed from JSON, not validated."""
    extra: dict[str, Any]
    """Keys of the body beyond the protocol's: sampling parameters of the sender's."""
    tools: list[dict[str, Any]] | None
    """Definitions that the prompt shows in the place of the endpoint's; None where the caller sends none."""
    uid: str | None
    """The pool's id of the rollout; None without Idempotency-Key."""
    turn: int | None
    """The turn that the key names, from 1; None without Idempotency-Key."""
    attempt: int | None
    """Which attempt at the rollout asks, from 1; None if the caller does not say."""
    digest: str
    """The same turn with another digest is another request."""
    history: tuple[bytes, ...]
    """A digest per message. With it a session tells whether a history was edited, without keeping the text."""
    size: int
    """Bytes of the body."""
    edited: bool
    """Whether the agent says that it edited the history. The mask then covers the whole prompt."""
    echo: Echo | None
    """The ids that need not be sent back."""
    forked_from: TurnKey | None = None
    """The turn of another rollout in whose place this one is sampled; the rollout begins with it here."""
    prompt_ids: list[int] | None = None
    """What that turn is to be sampled after, [P]; None where the sender does not say."""
    past: PastTokens | None = None
    """The rollout's tokens so far, of which nothing is proved yet; None unless the sender was told that its session is
    unknown."""

    def generate_params(
        self, rollout_id: str, turn: int, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> GenerateParams:
        """Makes what the policy is told; messages in normal form, and the tools in the prompt."""
        body = self.body
        return GenerateParams(
            rollout_id=rollout_id,
            turn=turn,
            messages=messages,
            tools=tools,
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=body.max_tokens,
            stop=body.stop,
            logprobs=body.logprobs,
            extra=self.extra,
        )


def parse_request(headers: Mapping[str, str], body: bytes) -> TurnRequest:
    """Parses a call. Headers are looked up in any case of letters.

    Raises 400 for a body that is no JSON object or a header that cannot be read, 422 for keys or values that the
    protocol does not have.
    """
    document = _object(body)
    prompt_ids = _prompt_ids(document.pop("prompt_token_ids", None))
    # Taken out before the model sees it, because `mask_check` looks at each value itself and says which one is wrong.
    mask = document.pop("response_mask", None)
    past = document.pop(RESTORE_SESSION, None)
    tools = document.pop("tools", None)
    try:
        completions = CompletionsRequest.model_validate(document)
        tokens = None if past is None else PastTokens.model_validate(past)
    except ValidationError as error:
        faults = [
            {"path": ".".join(map(str, fault["loc"])), "message": fault["msg"]}
            for fault in error.errors(include_input=False, include_url=False)
        ]
        raise EndpointError(422, "bad_request", "the body is not a completions request", faults=faults) from None
    if not completions.messages:
        raise EndpointError(422, "bad_request", "messages is empty; send the whole conversation")
    if not completions.rollout_id:
        raise EndpointError(422, "bad_request", "rollout_id is empty; it names the session that keeps the tokens")
    try:
        turn_headers = TurnHeaders.parse(headers)
    except ValueError as error:
        raise EndpointError(400, "bad_header", str(error)) from None
    return TurnRequest(
        body=completions,
        mask=mask,
        extra={key: value for key, value in document.items() if key not in CompletionsRequest.model_fields},
        tools=tools if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools) else None,
        uid=None if turn_headers.key is None else turn_headers.key.uid,
        turn=None if turn_headers.key is None else turn_headers.key.turn,
        attempt=turn_headers.attempt,
        digest=turn_headers.digest or hashlib.blake2b(body, digest_size=16).hexdigest(),
        history=tuple(message_digest(message) for message in completions.messages),
        size=len(body),
        edited=turn_headers.edited,
        echo=turn_headers.echo,
        forked_from=turn_headers.forked_from,
        prompt_ids=prompt_ids,
        past=tokens,
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EndpointError(400, "bad_json", f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise EndpointError(400, "bad_json", "the body must be a JSON object")
    return document


def _prompt_ids(value: Any) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(type(token) is int and token >= 0 for token in value):
        raise EndpointError(422, "bad_request", "prompt_token_ids must be a list of ids that is not empty")
    return value


def message_digest(message: Message) -> bytes:
    """Returns 16 bytes by which a message is recognised; nulls, absent keys and empty content count as the same."""
    wire = {key: value for key, value in message.model_dump(exclude_none=True).items() if value not in ("", [])}
    return hashlib.blake2b(orjson.dumps(wire, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()
