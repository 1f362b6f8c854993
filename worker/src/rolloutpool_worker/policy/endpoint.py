"""TrainerEndpoint: one call to a trainer, and our error for each way in which it can fail.

Each error says through `retryable` whether the same turn may be asked again. It may be where the trainer cannot have
sampled it (no connection, or a status that says so: `TrainerStatusError`), and where the trainer promised that asking
the same turn again is safe (`idempotent: true`, or see `idempotence`). Otherwise a second call could sample the turn a
second time. A reply that is no JSON is treated like a connection that broke: a gateway that lost the trainer may have
written it, and then nobody knows whether the turn was sampled.
"""

import asyncio
import time
from dataclasses import dataclass

import httpx

from rolloutpool_common.errors import RolloutPoolError, TrainerProtocolError, TrainerStatusError, TrainerUnreachable
from rolloutpool_common.process.metrics import IN_MODEL_CALL, MODEL_CALLS
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENCY
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.foreign_reply import TURN_KEY, ForeignReply, check_turn
from rolloutpool_worker.policy.idempotence import IdempotentTrainers, says_idempotent
from rolloutpool_worker.policy.refusal import message_of
from rolloutpool_worker.policy.reply import as_count
from rolloutpool_worker.policy.transport import NameUnresolved
from rolloutpool_worker.policy.turn_client import TurnAnswer, TurnClient

HEALTH_SECONDS = 5.0
"""For a trainer's answer to `GET /health`."""
HEALTH_BYTES = 2**20
"""Of that answer's body, which says nothing."""
_BLANK = 64
"""Bytes in which a JSON object has begun."""
# As a number: a member of httpx' enumeration is compared in six calls of functions.
_MULTIPLE_CHOICES = int(httpx.codes.MULTIPLE_CHOICES)


def origin_of(url: str) -> str:
    """Returns scheme, host and port of a URL, for metrics: user, password and path of it may be secret."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0].partition("?")[0].partition("#")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"


def _outcome_of(failure: BaseException, cause: BaseException) -> str:
    """Names a failed call in metrics; `cause` is what the client raised."""
    match failure:
        case TrainerStatusError(http_status=int() as status):
            return "429" if status == httpx.codes.TOO_MANY_REQUESTS else f"{status // 100}xx"
        case TrainerUnreachable():
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
    """Says where one rollout's trainer samples turns."""

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
        self._origin = spec.server_url
        self._shown = origin_of(spec.server_url)
        # A URL of the Osmosis wire is of one rollout, and what the breaker counts is of the port.
        self._port = self._shown if spec.messages_only else spec.server_url

    @property
    def may_repeat(self) -> bool:
        """Whether the same turn may be asked again, as far as options and earlier answers tell."""
        return self._spec.may_repeat or self._trainers.said(self._spec.server_url)

    async def ask_idempotent(self, headers: dict[str, str]) -> bool:
        """Asks the trainer itself whether the same turn may be asked again."""
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

    async def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str], where: str, *, seconds: float | None = None
    ) -> TurnAnswer:
        """Makes one call."""
        if not self._spec.v1 and self._breakers.check(self._port):
            await self._try(where, headers)
        samples, start, outcome = method == "POST", time.perf_counter(), "ok"
        IN_MODEL_CALL.now += samples
        try:
            answer = await self._client.ask(
                method, self._origin + path, headers, body, most_bytes=self._reply_limits.size, seconds=seconds
            )
            self._check(answer, where, headers.get(HEADER_IDEMPOTENCY))
            return answer
        except BaseException as error:
            failure = self._failure(error, where)
            outcome = _outcome_of(failure, error)
            if failure is error:
                raise
            raise failure from error
        finally:
            IN_MODEL_CALL.now -= samples
            if samples:
                MODEL_CALLS.observe(time.perf_counter() - start, outcome, endpoint=self._shown)

    async def _try(self, where: str, headers: dict[str, str]) -> None:
        """Finds out whether a port that was down takes connections again, by a call that samples nothing."""
        known = {name: headers[name] for name in ("Authorization",) if name in headers}
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await self._client.ask("GET", f"{self._origin}/health", known, b"", most_bytes=HEALTH_BYTES)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unconnected(where, error) from error
        # It listens; whether it samples, the turn's own call finds out.
        except (TimeoutError, httpx.HTTPError):
            pass
        self._breakers.worked(self._port)

    def _check(self, answer: TurnAnswer, where: str, key: str | None) -> None:
        """Refuses what is no reply to the turn `key`."""
        # Whatever the status: the breaker counts calls without a connection.
        self._breakers.worked(self._port)
        # Before the status: an error that was meant for another turn says nothing of this one.
        self._check_turn(answer, key)
        if answer.status >= _MULTIPLE_CHOICES:
            raise self._refusal(answer, where, key)
        limits, data = self._reply_limits, answer.data
        if not answer.is_whole:
            raise TrainerProtocolError(f"{where}: the reply is larger than {limits.size:,} bytes")
        if len(data) > limits.objects:
            limits.check_objects(data, where)
        if data[:1] != b"{" and data[:_BLANK].lstrip()[:1] != b"{":
            # Before the trainer is heard: a gateway's page can't say what the trainer promises.
            raise TrainerProtocolError(
                f"{where}: the reply is not JSON; a gateway between may have written it", retryable=self.may_repeat
            )
        if not self._spec.token_in:
            self._trainers.hear(self._origin, answer.headers)

    def _failure(self, error: BaseException, where: str) -> BaseException:
        """Returns our error for one of the client; others come back as they are."""
        match error:
            case RolloutPoolError() | asyncio.CancelledError():
                return error
            case httpx.InvalidURL() | OverflowError() | UnicodeError():
                # The resolver raises the last two for an impossible port or host name.
                return TrainerUnreachable(f"{where}: not a usable URL", retryable=False)
            case TimeoutError() | ForeignReply():
                return TrainerUnreachable(f"{where}: {error}", retryable=self.may_repeat)
            case httpx.ConnectError() | httpx.ConnectTimeout():
                # Always retryable: without a connection, the trainer cannot have had the request.
                return self._unconnected(where, error)
            case httpx.HTTPError():
                lost = f"{where}: the connection failed before the reply was whole ({type(error).__name__})"
                return TrainerUnreachable(lost, retryable=self.may_repeat)
        return error

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

    def _refusal(self, answer: TurnAnswer, where: str, key: str | None) -> TrainerStatusError:
        said = message_of(answer.data, detail=self._spec.token_in)
        named = key is not None and answer.headers.get(TURN_KEY) == key
        shown = said.message and (named or said.of_policy)
        return TrainerStatusError(
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
