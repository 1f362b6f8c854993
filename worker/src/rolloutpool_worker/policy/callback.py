"""Protocol v1's callback: messages in, `prompt_token_ids` + `token_ids` out.

The request body has exactly nine keys in their order. A reply is data only when it is whole: JSON, an assistant
message, as many finite log-probabilities as token ids. Anything else is a typed failure at the trainer's boundary;
whether the ids mean what they should is for whoever has the tokenizer to say. A call is repeated only where the trainer
cannot have sampled (refused connection, 429, 500, 503), or where it promised that asking the same turn again is safe.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from pydantic import ValidationError

from rolloutpool_common.errors import AmbiguousTurn, TrainerProtocolError, TrainerStatusError, TrainerUnreachable
from rolloutpool_common.protocol.completions import (
    HEADER_ATTEMPT,
    HEADER_DIGEST,
    HEADER_ECHO_DIGEST,
    HEADER_ECHO_PREFIX,
    HEADER_EDITED,
    HEADER_FINGERPRINT,
    HEADER_IDEMPOTENCY,
    HEADER_KEEPS_IDS,
    HEADER_POLICY_VERSION,
    CompletionsResponse,
)
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.http import Caller, Response

__all__ = ["CallbackChannel", "Echo", "Reply", "TurnCall"]

_log = logging.getLogger(__name__)

OFF_LOOP_BYTES = 256 * 1024
"""From here on parsing a reply would hold up the loop for milliseconds, so a thread does it."""

MAX_PAUSE = 30.0


@dataclass(frozen=True)
class Echo:
    """The part of the prompt that the trainer need not send back, if its own ids have this digest."""

    prefix: int
    digest: str


@dataclass(frozen=True)
class TurnCall:
    """One turn to be sampled."""

    turn: int
    body: TurnBody
    again: bool = False
    """Asked before with the other mask, and refused."""
    edited: bool = False
    echo: Echo | None = None


@dataclass(frozen=True)
class Reply:
    """One sampled turn, checked as far as it can be without a ledger."""

    message: dict[str, Any]
    """The assistant message in normal form."""
    finish_reason: str | None
    token_ids: list[int]
    logprobs: list[float]
    prompt_token_ids: list[int] | None
    """Behind the first `prefix` ids, which the trainer proved by their digest."""
    prefix: int
    policy_version: str | None
    keeps_ids: bool | None
    """Whether the trainer says that it continues sampled ids; None where it says nothing."""
    fingerprint: str | None
    """The trainer's tokenizer, where it says so."""


class CallbackChannel:
    """The way from one rollout to its trainer."""

    def __init__(
        self,
        caller: Caller,
        spec: RolloutSpec,
        *,
        uid: str,
        attempt: int,
        attempts: int,
        max_reply_bytes: int,
        pause: Callable[[float], Awaitable[None]],
        breakers: Breakers,
    ) -> None:
        """`pause` waits so many seconds between two calls of a turn; what it raises ends the turn uncalled."""
        self._breakers = breakers
        self._caller = caller
        self._pause = pause
        self._spec = spec
        self._uid = uid
        self._attempt = attempt
        self._attempts = 1 if spec.v1 else attempts
        self._max_reply_bytes = max_reply_bytes
        self._url = f"{spec.server_url}/v1/chat/completions"
        sampling = spec.sampling_params
        tail = {
            "rollout_id": spec.rollout_id,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": sampling.stop,
            "logprobs": sampling.logprobs,
        }
        self._tail = orjson.dumps(tail)[1:-1]
        extra = orjson.dumps(sampling.extra())[1:-1]
        self._extra = b"," + extra if extra else b""

    def body(self, messages: MessageBytes, response_mask: list[int] | None) -> TurnBody:
        """The protocol's nine keys, then the extra sampling parameters."""
        mask = orjson.dumps(response_mask)
        return messages.body(b"".join((b"],", self._tail, b',"response_mask":', mask, self._extra, b"}")))

    async def sample(self, call: TurnCall) -> Reply:
        """Has the policy sample one turn.

        Raises `RolloutError`s of the trainer's boundary, and `TrainerDown` (nothing was asked) where the trainer's port
        is taken out; protocol v1 asks it all the same.
        """
        body = call.body.data
        headers = self._headers(call)
        pause = 0.5
        for remaining in reversed(range(self._attempts)):
            if not self._spec.v1:
                self._breakers.check(self._spec.server_url)
            try:
                return await self._once(body, headers, call.turn)
            except (TrainerUnreachable, TrainerStatusError) as error:
                if not remaining or not error.retryable:
                    raise
                asked = error.retry_after if isinstance(error, TrainerStatusError) else None
                wait = min(asked if asked is not None else random.uniform(pause / 2, pause), MAX_PAUSE)
                _log.info("rollout %s turn %d: %s; again in %.1f s", self._uid, call.turn, error.message, wait)
                await self._pause(wait)
                pause = min(pause * 2, MAX_PAUSE)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _headers(self, call: TurnCall) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            HEADER_IDEMPOTENCY: f"{self._uid}/{call.turn}/2" if call.again else f"{self._uid}/{call.turn}",
            HEADER_ATTEMPT: str(self._attempt),
            HEADER_DIGEST: call.body.digest,
        }
        if self._spec.callback_api_key:
            headers["Authorization"] = f"Bearer {self._spec.callback_api_key}"
        if call.edited:
            headers[HEADER_EDITED] = "1"
        if call.echo is not None:
            headers[HEADER_ECHO_PREFIX] = str(call.echo.prefix)
            headers[HEADER_ECHO_DIGEST] = call.echo.digest
        return headers

    async def _once(self, body: bytes, headers: dict[str, str], turn: int) -> Reply:
        where = f"turn {turn} at {self._spec.server_url}"
        # The caller's limit holds for each read alone, and a reply may trickle for ever.
        whole = self._caller.read_timeout + self._caller.connect_timeout
        try:
            async with (
                asyncio.timeout(whole),
                self._caller.request("POST", self._url, content=body, headers=headers) as response,
            ):
                self._breakers.worked(self._spec.server_url)
                status = response.status_code
                if status >= 300:
                    raise TrainerStatusError(
                        f"{where}: the trainer answered {status}",
                        status=status,
                        retry_after=_number(response.headers.get("retry-after")),
                        repeatable=self._spec.may_repeat,
                    )
                data = await self._read(response, where)
                reply_headers = response.headers
        except (httpx.InvalidURL, OverflowError, UnicodeError) as error:
            # The last two are what the resolver makes of an impossible port or host name.
            raise TrainerUnreachable(f"{where}: not a usable URL", retryable=False) from error
        except TimeoutError as error:
            late = f"{where}: the reply was not whole after {whole:g} s"
            raise TrainerUnreachable(late, retryable=self._spec.may_repeat) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._breakers.failed(self._spec.server_url)
            raise TrainerUnreachable(f"{where}: no connection ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            lost = f"{where}: the connection failed before the reply was whole ({type(error).__name__})"
            raise TrainerUnreachable(lost, retryable=self._spec.may_repeat) from error
        if len(data) > OFF_LOOP_BYTES:
            return await asyncio.to_thread(self._parse, data, reply_headers, where)
        return self._parse(data, reply_headers, where)

    async def _read(self, response: Response, where: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.parts():
            size += len(part)
            if size > self._max_reply_bytes:
                raise TrainerProtocolError(f"{where}: the reply is larger than {self._max_reply_bytes:,} bytes")
            parts.append(part)
        return b"".join(parts)

    def _parse(self, data: bytes, headers: Mapping[str, str], where: str) -> Reply:
        try:
            reply = CompletionsResponse.model_validate(orjson.loads(data))
        except orjson.JSONDecodeError as error:
            raise TrainerProtocolError(f"{where}: the reply is not JSON ({error.msg})") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            raise TrainerProtocolError(
                f"{where}: the reply does not fit the protocol: {path}: {first['msg']}"
            ) from None
        if not reply.choices:
            raise TrainerProtocolError("empty choices in the reply of " + where)
        choice = reply.choices[0]
        if choice.message.role != "assistant":
            raise TrainerProtocolError(f"{where}: the reply's message has role {choice.message.role}, not assistant")
        if len(reply.logprobs) != len(reply.token_ids):
            raise TrainerProtocolError(
                f"{where}: {len(reply.token_ids)} token_ids, but {len(reply.logprobs)} logprobs; they must pair up"
            )
        if not all(map(math.isfinite, reply.logprobs)):
            raise TrainerProtocolError(f"{where}: a log-probability is not a finite number")
        if self._spec.v1 and reply.prompt_token_ids is None:
            raise TrainerProtocolError(f"{where}: the reply lacks prompt_token_ids")
        for name, ids in (("token_ids", reply.token_ids), ("prompt_token_ids", reply.prompt_token_ids or ())):
            if ids and min(ids) < 0:
                raise TrainerProtocolError(f"{where}: {name} has a negative id")
        return Reply(
            message=choice.message.wire(),
            finish_reason=choice.finish_reason,
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            prompt_token_ids=reply.prompt_token_ids,
            prefix=_number(headers.get(HEADER_ECHO_PREFIX)) or 0,
            policy_version=headers.get(HEADER_POLICY_VERSION) or reply.policy_version,
            keeps_ids={"true": True, "false": False}.get(headers.get(HEADER_KEEPS_IDS, "").lower()),
            fingerprint=headers.get(HEADER_FINGERPRINT),
        )


def refuse_ambiguous(turn: int) -> AmbiguousTurn:
    """For a turn that a dead worker may have asked for already."""
    return AmbiguousTurn(
        f"turn {turn}: the worker that had this rollout died, and may have asked the trainer for this turn; the "
        "trainer does not promise that asking again is safe (idempotent: true would)"
    )


def _number(value: str | None) -> int | None:
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 10 else None
