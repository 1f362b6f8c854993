"""TrainerEndpoint: one call to a trainer, and our error for each way in which it can fail.

Each error says through `retryable` whether the same turn may be asked again. It may be where the trainer cannot have
sampled it (no connection, or a status that says so: `TrainerStatusError`), and where the trainer promised that asking
the same turn again is safe (`idempotent: true`, or see `idempotence`). Otherwise a second call could sample the turn a
second time. A reply that is no JSON is treated like a connection that broke: a gateway that lost the trainer may have
written it, and then nobody knows whether the turn was sampled.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import httpx

from rolloutpool_common.errors import TrainerProtocolError, TrainerStatusError, TrainerUnreachable
from rolloutpool_common.process.metrics import IN_MODEL_CALL, MODEL_CALLS
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENCY, HEADER_TURN_KEY
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.foreign_reply import ForeignReply, check_turn, discard
from rolloutpool_worker.policy.idempotence import IdempotentTrainers, says_idempotent
from rolloutpool_worker.policy.refusal import read_message
from rolloutpool_worker.policy.reply import as_count
from rolloutpool_worker.policy.transport import AiohttpTransport, NameUnresolved

__all__ = ["EndpointReply", "ReplyLimits", "TrainerEndpoint", "origin_of"]


HEALTH_SECONDS = 5.0
"""For a trainer's answer to `GET /health`."""
_BLANK = 64
"""Bytes in which a JSON object has begun."""


class EndpointReply(NamedTuple):
    """A reply of status 2xx."""

    data: bytes
    """The whole body."""
    headers: httpx.Headers
    discard: Callable[[], None]
    """Closes the connection by which it came, if the body shows that the reply is foreign."""


def origin_of(url: str) -> str:
    """Returns scheme, host and port of a URL, for metrics: user, password and path of it may be secret."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0].partition("?")[0].partition("#")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"


@lru_cache(1024)
def _parsed(url: str) -> httpx.URL:
    """Parses a URL once for all rollouts of a trainer: it takes longer than the rest of building a request."""
    return httpx.URL(url)


def _outcome_of(error: BaseException) -> str:
    """Names a failed call in metrics."""
    match error:
        case TrainerStatusError(http_status=int() as status):
            return "429" if status == httpx.codes.TOO_MANY_REQUESTS else f"{status // 100}xx"
        case TrainerUnreachable():
            cause = error.__cause__
            if isinstance(cause, NameUnresolved):
                return "unresolved"
            if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
                return "refused"
            return "timeout" if isinstance(cause, TimeoutError | httpx.TimeoutException) else "broken"
        case TrainerProtocolError():
            return "invalid"
        case asyncio.CancelledError():
            return "cancelled"
    return "other"


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """How large a trainer's reply may be."""

    size: int
    """Bytes."""
    objects: int = 200_000
    """JSON objects. To parse, check and write 600,000 holds the interpreter for 0.7 s, and all rollouts beside wait."""

    def check_objects(self, body: bytes, where: str) -> None:
        """Raises TrainerProtocolError where a body has too many objects; a small one isn't looked at.

        In a string each quote has a backslash before it, so arguments that are sent as text are not counted.
        """
        if len(body) <= self.objects:
            return
        found = body.count(b'{"') + body.count(b"{}")
        if found > self.objects:
            raise TrainerProtocolError(
                f"{where}: the reply has {found:,} JSON objects, {self.objects:,} are allowed; send a "
                "call's arguments as text, and numbers as lists"
            )


class TrainerEndpoint:
    """Where one rollout's trainer samples turns."""

    def __init__(
        self,
        transport: AiohttpTransport,
        breakers: Breakers,
        spec: RolloutSpec,
        *,
        reply_limits: ReplyLimits,
        trainers: IdempotentTrainers | None = None,
    ) -> None:
        self._trainers = trainers or IdempotentTrainers()
        self._transport = transport
        self._breakers = breakers
        self._spec = spec
        self._reply_limits = reply_limits
        self._shown = origin_of(spec.server_url)
        # A URL of the Osmosis wire is of one rollout, and what the breaker counts is of the port.
        self._port = self._shown if spec.messages_only else spec.server_url

    @property
    def may_repeat(self) -> bool:
        """Whether the same turn may be asked again, as far as options and earlier answers tell."""
        return self._spec.may_repeat or self._trainers.said(self._spec.server_url)

    async def ask_idempotent(self, headers: dict[str, str]) -> bool:
        """Asks the trainer itself whether the same turn may be asked again.

        Args:
            headers: As those of a turn, with the trainer's key.

        Raises:
            TrainerDown: the breaker has taken this port out.
            TrainerUnreachable: the port refuses connections; with protocol v1 the answer is no.
            TargetRefused: this pool may not call the address.
        """
        origin = self._spec.server_url
        if not self._spec.v1:
            self._breakers.check(self._port)
        try:
            request = httpx.Request("GET", f"{origin}/health", headers=httpx.Headers(headers, encoding="utf-8"))
            async with (
                asyncio.timeout(HEALTH_SECONDS),
                aclosing(await self._transport.handle_async_request(request)) as response,
            ):
                self._breakers.worked(self._port)
                check_turn(response, None)
                return says_idempotent(response.headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if self._spec.v1:
                return False
            raise self._unconnected(origin, error) from error
        # A trainer that says nothing in time, or nothing that can be understood, has not promised anything.
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OverflowError, UnicodeError):
            return False

    async def post(self, body: bytes, headers: dict[str, str], where: str) -> tuple[bytes, httpx.Headers]:
        """Asks a callback for one turn, once; arguments and errors as of `ask`."""
        path = "/chat/completions" if self._spec.messages_only else "/v1/chat/completions"
        reply = await self.ask("POST", path, body, headers, where)
        return reply.data, reply.headers

    async def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str], where: str, *, seconds: float | None = None
    ) -> EndpointReply:
        """Makes one call.

        Args:
            method: GET or POST.
            path: Below the endpoint's URL.
            body: the request's JSON.
            headers: of the request.
            where: turn and URL, for the messages of errors.
            seconds: for the reply; None stands for the transport's own limit.

        Raises:
            TrainerDown: the breaker has taken this port out; nothing was asked. Protocol v1 asks all the same.
            TargetRefused: this pool may not call the address; nothing was asked.
            TrainerUnreachable: no connection, or the reply did not come whole, or the one that came names another turn.
            TrainerStatusError: the trainer answered with a redirect or an error.
            TrainerProtocolError: the reply is too large, or is no JSON object. The latter may be a gateway's page.
        """
        if not self._spec.v1:
            self._breakers.check(self._port)
        if method == "GET":
            return await self._ask(method, path, body, headers, where, seconds)
        # A turn is sampled.
        start, outcome = time.perf_counter(), "ok"
        try:
            with IN_MODEL_CALL:
                return await self._ask(method, path, body, headers, where, seconds)
        except BaseException as error:
            outcome = _outcome_of(error)
            raise
        finally:
            MODEL_CALLS.observe(time.perf_counter() - start, outcome, endpoint=self._shown)

    async def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str], where: str, seconds: float | None
    ) -> EndpointReply:
        origin = self._spec.server_url
        # The transport's limit holds for each read alone, and a reply may trickle for ever.
        limits = self._transport.timeout
        if seconds is not None:
            limits = httpx.Timeout(seconds, connect=limits.connect)
        whole = (limits.read or 0) + (limits.connect or 0)
        try:
            # UTF-8, because a key for the trainer may hold any letters.
            named = httpx.Headers(headers, encoding="utf-8")
            limited = {} if seconds is None else {"timeout": limits.as_dict()}
            # With `content`, httpx would add Host and Content-Length, which aiohttp does as well, and take ten times as
            # long (17 and 2 us; docs/decisions/0035).
            stream = httpx.ByteStream(body)
            request = httpx.Request(
                method, _parsed(f"{origin}{path}"), headers=named, stream=stream, extensions=limited
            )
            async with (
                asyncio.timeout(whole),
                aclosing(await self._transport.handle_async_request(request)) as response,
            ):
                # At the head of the reply, whatever its status: the breaker counts calls without a connection.
                self._breakers.worked(self._port)
                # Before the status: an error that was meant for another turn says nothing of this one.
                check_turn(response, headers.get(HEADER_IDEMPOTENCY))
                await self._check_status(response, where, headers.get(HEADER_IDEMPOTENCY))
                data = await self._read(response, where)
                if data[:_BLANK].lstrip()[:1] != b"{":
                    # Before the trainer is heard: a gateway's page can't say what the trainer promises.
                    raise TrainerProtocolError(
                        f"{where}: the reply is not JSON; a gateway between may have written it",
                        retryable=self.may_repeat,
                    )
                if not self._spec.token_in:
                    self._trainers.hear(origin, response.headers)
                return EndpointReply(data, response.headers, partial(discard, response))
        except (httpx.InvalidURL, OverflowError, UnicodeError) as error:
            # The resolver raises the last two for an impossible port or host name.
            raise TrainerUnreachable(f"{where}: not a usable URL", retryable=False) from error
        except TimeoutError as error:
            late = f"{where}: the reply was not whole after {whole:g} s"
            raise TrainerUnreachable(late, retryable=self.may_repeat) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            # Always retryable: without a connection, the trainer cannot have had the request.
            raise self._unconnected(where, error) from error
        except ForeignReply as error:
            raise TrainerUnreachable(f"{where}: {error}", retryable=self.may_repeat) from error
        except httpx.HTTPError as error:
            lost = f"{where}: the connection failed before the reply was whole ({type(error).__name__})"
            raise TrainerUnreachable(lost, retryable=self.may_repeat) from error

    def _unconnected(self, where: str, error: httpx.ConnectError | httpx.ConnectTimeout) -> TrainerUnreachable:
        """Tells the breaker of a call without a connection, and makes its error."""
        os_error = getattr(error.__cause__, "os_error", None)
        match error:
            case NameUnresolved():
                why = str(error)
            case httpx.ConnectTimeout():
                why = "no answer in time"
            case _:
                why = "refused" if isinstance(os_error, ConnectionRefusedError) else type(error).__name__
        self._breakers.failed(self._port, why)
        return TrainerUnreachable(f"{where}: no connection ({why})")

    async def _check_status(self, response: httpx.Response, where: str, key: str | None) -> None:
        status = response.status_code
        if status >= httpx.codes.MULTIPLE_CHOICES:
            said = await read_message(response, detail=self._spec.token_in)
            named = key is not None and response.headers.get(HEADER_TURN_KEY) == key
            shown = said.message and (named or said.of_policy)
            raise TrainerStatusError(
                f"{where}: the trainer answered {status}" + (f": {said.message}" if shown else ""),
                said=said.message,
                error_type=said.error_type,
                status=status,
                retry_after=as_count(response.headers.get("retry-after")),
                repeatable=self.may_repeat,
            )

    async def _read(self, response: httpx.Response, where: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        # Raw, because the transport has decompressed it.
        async for part in response.aiter_raw():
            size += len(part)
            # While it is read, because a reply need not say its length, or say the truth.
            if size > self._reply_limits.size:
                raise TrainerProtocolError(f"{where}: the reply is larger than {self._reply_limits.size:,} bytes")
            parts.append(part)
        body = b"".join(parts)
        self._reply_limits.check_objects(body, where)
        return body
