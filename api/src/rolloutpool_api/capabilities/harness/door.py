"""Door: what programs call as their model.

1. A program has an address (`/s/{uid}`) and a key. The key is checked before a byte of the body is read.
2. The body is read, within limits of size and time, and put into chat form by its dialect (`dialects`).
3. The call is stored, or found to be a repetition (`calls`). From here on it is not lost, whatever dies.
4. The door waits for the reply. A stream begins with the reply, or with a ping after ten seconds; so what is refused at
   once has its right status. If the wait is too long, the program is told to ask again, and finds the same turn.
5. When the last byte is given away and the program is still there, the call counts as taken.

A door knows no tokens, and keeps nothing that its death could lose. Any number of them may stand behind a balancer.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
import structlog
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from rolloutpool_api.capabilities.harness.answer import CallAnswer, DoorRefusal, refuse, send_object
from rolloutpool_api.capabilities.harness.calls import LOOK_SECONDS, DoorCalls
from rolloutpool_api.capabilities.harness.dialects.base import (
    AgentReply,
    AgentRequest,
    CallRefused,
    Dialect,
    ErrorKind,
    joined_system,
)
from rolloutpool_api.capabilities.harness.dialects.chat import ChatDialect
from rolloutpool_api.capabilities.harness.dialects.items import filled, named_replies
from rolloutpool_api.capabilities.harness.dialects.messages import MessagesDialect
from rolloutpool_api.capabilities.harness.dialects.responses import ResponsesDialect
from rolloutpool_api.capabilities.harness.program_body import parsed, read_body
from rolloutpool_api.capabilities.harness.settings import DoorSettings
from rolloutpool_common.capabilities.harness.calls import ModelCall
from rolloutpool_common.capabilities.harness.sessions import Arrival, OpenSession, Outcome, TakenCall
from rolloutpool_common.errors import SecretUnreadable
from rolloutpool_common.protocol.sampling import SamplingParams
from rolloutpool_common.store import StoreError, StoreFull

_log = structlog.stdlib.get_logger(__name__)

DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": ChatDialect(),
    "/responses": ResponsesDialect(),
    "/messages": MessagesDialect(),
    "/messages/count_tokens": MessagesDialect(),
}
"""By the end of an address. SDKs disagree about who writes the /v1 before it, so it is left out."""
COUNTS = "/messages/count_tokens"
_VERSIONS = re.compile(r"^(?:/v1(?=/|$))+")
PING_SECONDS = 10.0
PREFIX = "/s/"
NUMBER_DIGITS = 5
"""Of a reply; a session makes at most 10,000 calls."""
LONGEST_TURN = 32_768
"""Tokens that a program may ask for where its own parameters count; `max_tokens` of a rollout goes no further."""
SENT_BYTES = 4000
"""Of how a program asks, besides its prompt, so much is kept for who looks at the rollout."""
MOST_MESSAGES = 10_000
"""Of one call. Redis looks for each of them in one script, and nobody else is served meanwhile."""
TOO_LATE: tuple[ErrorKind, str] = (
    "failed",
    "the policy has not answered in time; ask again, and the same turn is found",
)
STOPS: tuple[ErrorKind, str] = ("failed", "this door stops; ask again, and the same turn is found")
"""To those that still wait when the server cancels them, `FINISH_SECONDS` after it was told to stop."""
LAST_SECONDS = 1.0
"""For so long that is said to one of them."""
REFUSED: Mapping[Outcome, tuple[ErrorKind, str]] = {
    "gone": ("unknown", "this session is unknown, or its batch was deleted"),
    "over": ("ended", "this session has ended"),
    "place": ("key", "this key is of an older place; the program was started again elsewhere"),
    "calls": ("ended", "the session has made all the calls that it may make (harness.max_calls)"),
    "at_once": ("busy", "too many calls of this session wait for their answers (harness.max_calls_at_once)"),
    "bytes": ("large", "the session has said all that it may say (harness.max_mb)"),
}


class Exchange(NamedTuple):
    """One request of HTTP, as ASGI hands it over."""

    scope: Scope
    headers: Mapping[bytes, str]
    receive: Receive
    send: Send


class Door:
    """The ASGI application of one door."""

    def __init__(self, settings: DoorSettings, calls: DoorCalls) -> None:
        self._settings = settings
        self._calls = calls
        self._held = 0
        self._held_of: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request (ASGI)."""
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        uid, _, rest = scope["path"].removeprefix(PREFIX).partition("/")
        # Programs may have joined an address that ends in a slash.
        at = _VERSIONS.sub("", f"/{rest.strip('/')}") or "/"
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        dialect = DIALECTS.get(at) or DIALECTS["/messages" if b"anthropic-version" in headers else "/chat/completions"]
        try:
            if scope["path"] in ("/livez", "/readyz"):
                return await send_object(send, 200, {"status": "ok"})
            if not scope["path"].startswith(PREFIX):
                raise DoorRefusal("unknown", "a session's address is /s/{uid}")
            session, place = await self._admitted(uid, headers)
            await self._route(session, place, at, dialect, Exchange(scope, headers, receive, send))
        except DoorRefusal as refusal:
            await refuse(send, dialect, refusal)
        except asyncio.CancelledError:
            await _while_it_stops(refuse(send, dialect, DoorRefusal(*STOPS)))
        except SecretUnreadable as error:
            _log.error("session unreadable", error=error.message)
            await refuse(send, dialect, DoorRefusal("failed", "this door lacks the key of the API's secrets file"))
        except StoreFull:
            await refuse(send, dialect, DoorRefusal("failed", "the pool's Redis is full; ask again later"))
        except StoreError:
            await refuse(send, dialect, DoorRefusal("failed", "the pool's Redis does not answer; ask again"))

    async def _live(self, receive: Receive, send: Send) -> None:
        """Beats and listens from the server's start to its stop."""
        await receive()
        self._calls.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._calls.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _admitted(self, uid: str, headers: Mapping[bytes, str]) -> tuple[OpenSession, int]:
        """Finds whose program calls, and from which place."""
        key = headers.get(b"x-api-key") or headers.get(b"authorization", "").strip().rpartition(" ")[2]
        session = await self._calls.session(uid, time.monotonic() + self._settings.door_hold_seconds)
        place = None if session is None else session.place_of(key)
        # Unknown sessions are told apart from wrong keys to nobody.
        if session is None or place is None:
            raise DoorRefusal("key", "this is not the key of this session")
        return session, place

    async def _route(self, session: OpenSession, place: int, at: str, dialect: Dialect, http: Exchange) -> None:
        scope, send = http.scope, http.send
        if at in {"/models", "/"}:
            models = {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "rolloutpool"}]}
            return await send_object(send, 200, models, body=scope["method"] != "HEAD")
        if at not in DIALECTS or scope["method"] != "POST":
            raise DoorRefusal("unknown", f"the door has no {scope['method']} {at[:64]}; it has {', '.join(DIALECTS)}")
        if self._held >= self._settings.door_connections:
            raise DoorRefusal("failed", "this door holds all that it may hold (ROLLOUTPOOL_DOOR_CONNECTIONS)")
        self._held += 1
        try:
            # Read before it may be refused: a client that still sends may not read the answer.
            body = await read_body(http.receive, http.headers, self._settings)
            with self._held_for(session):
                await self._call(session, place, body, dialect, http, counts=at == COUNTS)
        finally:
            self._held -= 1

    @contextmanager
    def _held_for(self, session: OpenSession) -> Iterator[None]:
        """Counts what a session holds of this door, and refuses what is too much.

        Repetitions count as no calls. One may come before the door has noticed that the connection before it is gone.
        """
        uid = session.uid
        if self._held_of[uid] >= 2 * session.choice.max_calls_at_once:
            raise DoorRefusal(*REFUSED["at_once"])
        self._held_of[uid] += 1
        try:
            yield
        finally:
            self._held_of[uid] -= 1
            if not self._held_of[uid]:
                del self._held_of[uid]

    async def _call(
        self, session: OpenSession, place: int, body: bytes, dialect: Dialect, http: Exchange, *, counts: bool
    ) -> None:
        """Has one call answered; with `counts` it asks only how many tokens its prompt has."""
        end = time.monotonic() + self._settings.door_hold_seconds
        request, sent = self._read(body, dialect, session)
        if names := named_replies(request.messages):
            request = await self._with_items(session, request, names, end)
        if request.after is not None:
            request, after = await self._behind(session, request, request.after, end)
        else:
            after = None
        _check(request)
        call = ModelCall(
            request.messages,
            request.tools,
            sampling=_checked_sampling(request) if session.choice.sampling == "agent" else {},
            after=after,
            counts=counts,
            sent=sent,
        )
        came = self._came(place, http.headers)
        taken = await self._calls.take(session, call, came, end=end)
        answer = CallAnswer(dialect, request, http.send)
        gone = asyncio.ensure_future(_disconnected(http.receive))
        whole = None
        try:
            while (whole := await self._give(session, taken, answer, gone, end)) is None:
                # Redis has lost it with its last second.
                with suppress(StoreError):
                    taken = await self._calls.take(session, call, came, end=end)
        except asyncio.CancelledError:
            await _while_it_stops(answer.fail(*STOPS))
        finally:
            gone.cancel()
            if whole:
                self._calls.heard(session.uid, taken.n, came.holder)
            elif taken.n:
                await asyncio.shield(self._calls.cut(session.uid, taken.n, came.holder))

    def _came(self, place: int, headers: Mapping[bytes, str]) -> Arrival:
        """Says how a call came: SDKs name a request the same when they repeat it, or say that they do."""
        return Arrival(
            place,
            self._calls.holder(),
            request_id=(headers.get(b"x-client-request-id") or headers.get(b"idempotency-key") or "")[:128],
            repeats=headers.get(b"x-stainless-retry-count", "0") not in ("", "0"),
        )

    async def _give(
        self,
        session: OpenSession,
        taken: TakenCall,
        answer: CallAnswer,
        gone: "asyncio.Future[None]",
        end: float,
    ) -> bool | None:
        """Waits for a reply and gives it; tells whether the program was there until the last byte.

        Returns None where Redis has lost the call.
        """
        uid, n, reply = session.uid, taken.n, taken.reply
        if taken.outcome != "taken":
            await answer.fail(*REFUSED[taken.outcome])
            return False
        if reply is None:
            with self._calls.waiting(uid, n) as waits:
                pings = time.monotonic() + PING_SECONDS
                while not waits.done():
                    if (left := end - time.monotonic()) <= 0:
                        await answer.fail(*TOO_LATE)
                        return False
                    await asyncio.wait(
                        (waits, gone), timeout=min(LOOK_SECONDS, left), return_when=asyncio.FIRST_COMPLETED
                    )
                    if gone.done():
                        return False
                    if not waits.done() and not await self._calls.look_after(uid, taken, waits):
                        return None
                    if time.monotonic() > pings and not waits.done():
                        pings += PING_SECONDS
                        await answer.ping()
                reply = waits.result()
        if reply is None:
            await answer.fail(*REFUSED["over"])
            return False
        if "full" in reply:
            await answer.fail("ended", "the session has sampled all that it may (max_tokens_total)")
            return False
        if "too_long" in reply:
            await answer.fail("long", "prompt is too long: the policy's maximum context length is reached")
            return False
        if "refused" in reply:
            await answer.fail("invalid", reply["refused"])
            return False
        if "counted" in reply:
            return await answer.give_whole({"input_tokens": reply["counted"]}, gone)
        return await answer.give(AgentReply.of(uid, n, int(time.time()), reply), gone)

    async def _behind(
        self, session: OpenSession, request: AgentRequest, reply: str, end: float
    ) -> tuple[AgentRequest, int]:
        """Puts the history of the reply that a program names in front of its messages; returns that reply's number."""
        n = _number_of(session, reply)
        history = await self._calls.history(session.uid, n, end)
        if history is None:
            raise DoorRefusal("invalid", f"previous_response_id: this session has given no response resp_{reply[:64]}")
        own = list(request.messages)
        if request.renews_system:
            history = [own.pop(0), *(history[1:] if history[0]["role"] == "system" else history)]
        return replace(request, messages=joined_system([*history, *own])), n

    async def _with_items(
        self, session: OpenSession, request: AgentRequest, names: list[str], end: float
    ) -> AgentRequest:
        """Fills in the items that a program names instead of sending them."""
        numbers = [_number_of(session, name) for name in names]
        found = await self._calls.replies(session.uid, numbers, end)
        replies = {
            name: AgentReply.of(session.uid, n, 0, stored)
            for name, n, stored in zip(names, numbers, found, strict=True)
            if stored is not None
        }
        try:
            return replace(request, messages=filled(request.messages, replies))
        except CallRefused as refused:
            raise DoorRefusal("invalid", refused.message) from None

    @staticmethod
    def _read(body: bytes, dialect: Dialect, session: OpenSession) -> tuple[AgentRequest, dict[str, Any]]:
        """Puts a body into chat form; returns also how it is asked, besides its prompt."""
        given = parsed(body)
        try:
            request = dialect.read(given, drop=session.choice.hosted_tools == "drop")
            # The reader takes what is nested more deeply than the writer gives.
            orjson.dumps(request.tools)
        except CallRefused as refused:
            raise DoorRefusal("invalid", refused.message) from None
        except orjson.JSONEncodeError:
            raise DoorRefusal("invalid", "the request is nested too deeply") from None
        return request, _sent(given, dialect)


def _number_of(session: OpenSession, reply: str) -> int:
    """Returns the number of the call to which a session has given this reply; 0 where it has given none of this id."""
    uid, _, number = reply.rpartition("-")
    is_number = number.isascii() and number.isdecimal() and len(number) <= NUMBER_DIGITS
    return int(number) if uid == session.uid and is_number else 0


def _check(request: AgentRequest) -> None:
    """Refuses messages that no policy can be asked with."""
    messages = request.messages
    if len(messages) > MOST_MESSAGES:
        raise DoorRefusal("large", f"the request has more than {MOST_MESSAGES} messages")
    if not messages:
        raise DoorRefusal("invalid", "the request has no messages")
    if messages[-1]["role"] == "assistant":
        raise DoorRefusal("invalid", "the last message is the assistant's, and no turn is continued in its middle")


def _checked_sampling(request: AgentRequest) -> dict[str, Any]:
    """Returns the parameters that a program sends, or refuses them."""
    given = dict(request.sampling)
    if isinstance(given.get("max_tokens"), int):
        given["max_tokens"] = min(given["max_tokens"], LONGEST_TURN)
    try:
        return SamplingParams.model_validate(given, strict=True).model_dump(include=set(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise DoorRefusal("invalid", f"{first['loc'][0]}: {first['msg']}") from None


def _sent(given: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Returns how a program asks besides its prompt; of what is too much for anybody to read, the names."""
    how = {name: value for name, value in given.items() if name not in dialect.prompt_fields}
    try:
        if len(orjson.dumps(how)) <= SENT_BYTES:
            return {"dialect": dialect.name, "fields": how}
    except orjson.JSONEncodeError:
        pass
    return {"dialect": dialect.name, "fields": {name[:64]: "(left out)" for name in [*how][:32]}}


async def _while_it_stops(saying: Awaitable[None]) -> None:
    # One that does not read must not keep the door from ending.
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_SECONDS):
            await saying


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
