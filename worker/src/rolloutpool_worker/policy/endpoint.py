"""TrainerEndpoint: one call to a trainer, and our error for each way in which it can fail.

Each error says through `retryable` whether the same turn may be asked again. It may be where the trainer cannot have
sampled it (no connection, or a status that says so: `TrainerStatusError`), and where the trainer promised that asking
the same turn again is safe (`idempotent: true`, or see `idempotence`). Otherwise a second call could sample the turn a
second time. A reply that is no JSON is treated like a connection that broke: a gateway that lost the trainer may have
written it, and then nobody knows whether the turn was sampled.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from rolloutpool_common.errors import TrainerProtocolError, TrainerStatusError, TrainerUnreachable
from rolloutpool_common.process.metrics import IN_MODEL_CALL, MODEL_CALLS
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENCY, HEADER_TURN_KEY
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.foreign_reply import ForeignReply, check_turn
from rolloutpool_worker.policy.idempotence import IdempotentTrainers, says_idempotent
from rolloutpool_worker.policy.refusal import message_of
from rolloutpool_worker.policy.reply import as_count
from rolloutpool_worker.policy.transport import NameUnresolved
from rolloutpool_worker.policy.turn_client import TurnAnswer, TurnClient

__all__ = ["ReplyLimits", "TrainerEndpoint", "origin_of"]

HEALTH_SECONDS = 5.0
"""For a trainer's answer to `GET /health`."""
HEALTH_BYTES = 2**20
"""Of that answer's body, which says nothing."""
_BLANK = 64
"""Bytes in which a JSON object has begun."""


def origin_of(url: str) -> str:
    """Returns scheme, host and port of a URL, for metrics: user, password and path of it may be secret."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0].partition("?")[0].partition("#")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"


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
        client: TurnClient,
        breakers: Breakers,
        spec: RolloutSpec,
        *,
        reply_limits: ReplyLimits,
        trainers: IdempotentTrainers | None = None,
    ) -> None:
        self._trainers = trainers or IdempotentTrainers()
        self._client = client
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
            async with asyncio.timeout(HEALTH_SECONDS):
                answer = await self._client.ask("GET", f"{origin}/health", headers, b"", most_bytes=HEALTH_BYTES)
            self._breakers.worked(self._port)
            self._check_turn(answer, None)
            return says_idempotent(answer.headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if self._spec.v1:
                return False
            raise self._unconnected(origin, error) from error
        # A trainer that says nothing in time, or nothing that can be understood, has not promised anything.
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OverflowError, UnicodeError):
            return False

    async def post(self, body: bytes, headers: dict[str, str], where: str) -> tuple[bytes, Mapping[str, str]]:
        """Asks a callback for one turn, once; arguments and errors as of `ask`."""
        path = "/chat/completions" if self._spec.messages_only else "/v1/chat/completions"
        answer = await self.ask("POST", path, body, headers, where)
        return answer.data, answer.headers

    async def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str], where: str, *, seconds: float | None = None
    ) -> TurnAnswer:
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
    ) -> TurnAnswer:
        origin, key = self._spec.server_url, headers.get(HEADER_IDEMPOTENCY)
        limits = self._reply_limits
        try:
            answer = await self._client.ask(
                method, f"{origin}{path}", headers, body, most_bytes=limits.size, seconds=seconds
            )
            # Whatever the status: the breaker counts calls without a connection.
            self._breakers.worked(self._port)
            # Before the status: an error that was meant for another turn says nothing of this one.
            self._check_turn(answer, key)
            self._check_status(answer, where, key)
            if not answer.is_whole:
                raise TrainerProtocolError(f"{where}: the reply is larger than {limits.size:,} bytes")
            limits.check_objects(answer.data, where)
            if answer.data[:_BLANK].lstrip()[:1] != b"{":
                # Before the trainer is heard: a gateway's page can't say what the trainer promises.
                raise TrainerProtocolError(
                    f"{where}: the reply is not JSON; a gateway between may have written it",
                    retryable=self.may_repeat,
                )
            if not self._spec.token_in:
                self._trainers.hear(origin, answer.headers)
            return answer
        except (httpx.InvalidURL, OverflowError, UnicodeError) as error:
            # The resolver raises the last two for an impossible port or host name.
            raise TrainerUnreachable(f"{where}: not a usable URL", retryable=False) from error
        except TimeoutError as error:
            raise TrainerUnreachable(f"{where}: {error}", retryable=self.may_repeat) from error
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
        cause = error.__cause__
        match error:
            case NameUnresolved():
                why = str(error)
            case httpx.ConnectTimeout():
                why = "no answer in time"
            case _:
                why = "refused" if _is_refusal(cause) else type(error).__name__
        self._breakers.failed(self._port, why)
        return TrainerUnreachable(f"{where}: no connection ({why})")

    @staticmethod
    def _check_turn(answer: TurnAnswer, key: str | None) -> None:
        try:
            check_turn(answer.headers, key)
        except ForeignReply:
            # Whatever comes by this connection next may be foreign as well.
            answer.discard()
            raise

    def _check_status(self, answer: TurnAnswer, where: str, key: str | None) -> None:
        if answer.status >= httpx.codes.MULTIPLE_CHOICES:
            said = message_of(answer.data, detail=self._spec.token_in)
            named = key is not None and answer.headers.get(HEADER_TURN_KEY) == key
            shown = said.message and (named or said.of_policy)
            raise TrainerStatusError(
                f"{where}: the trainer answered {answer.status}" + (f": {said.message}" if shown else ""),
                said=said.message,
                error_type=said.error_type,
                status=answer.status,
                retry_after=as_count(answer.headers.get("retry-after")),
                repeatable=self.may_repeat,
            )


def _is_refusal(cause: BaseException | None) -> bool:
    # aiohttp's error has the system's as an attribute.
    return isinstance(getattr(cause, "os_error", cause), ConnectionRefusedError)
