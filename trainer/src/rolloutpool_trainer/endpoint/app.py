"""A trainer's `/v1/chat/completions`, around any policy that turns prompt ids into sampled ids.

Mask 1 if and only if the policy sampled the token: `get_session(rollout_id)` says so from a ledger that this endpoint
keeps itself, and a request whose `response_mask` disagrees is refused (strict) or counted. A turn is sampled once: the
same Idempotency-Key with the same digest joins the running generation or gets the stored reply byte for byte; errors
are never stored. One process and one event loop per app; sessions live in memory, bounded in number and age.
"""

import asyncio
import hashlib
import hmac
import logging
import sys
import time
import uuid
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rolloutpool_common.protocol.completions import (
    HEADER_ECHO_PREFIX,
    HEADER_FINGERPRINT,
    HEADER_KEEPS_IDS,
    HEADER_POLICY_VERSION,
)
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_common.rendering import ChatTokenizer, TemplateRefused, load_tokenizer
from rolloutpool_trainer.client.transport import key_from_environment
from rolloutpool_trainer.endpoint.errors import EndpointError, MaskMismatch, check_mask
from rolloutpool_trainer.endpoint.parsing import parse_tool_calls
from rolloutpool_trainer.endpoint.policy import Generate, GenerateParams, Generation, sample
from rolloutpool_trainer.endpoint.prompts import Prompt, Prompter, ToolSource
from rolloutpool_trainer.endpoint.request import TurnRequest, message_digest, parse_request
from rolloutpool_trainer.endpoint.sampling_log import LoggedTurn, SamplingLog
from rolloutpool_trainer.endpoint.sessions import RunningTurn, Session, SessionStore, Turn, TurnReply, session_key

__all__ = ["CallbackApp", "callback_app"]

logger = logging.getLogger(__name__)

INLINE_BYTES = 32_768
"""Bodies above this are rendered in a thread: below a millisecond a thread costs more than it frees."""


class CallbackApp:
    """The ASGI app that `callback_app` makes. Mount it, or serve it with `serve_callback`."""

    def __init__(
        self,
        generate: Generate,
        *,
        prompter: Prompter,
        tools: ToolSource,
        strict: bool,
        api_key: str | None,
        parse: Callable[[str], Message],
        policy_version: str | None,
        sessions: SessionStore,
    ) -> None:
        """Use `callback_app`."""
        self.policy_version = policy_version
        """Reported for turns whose generation names none; set it when the weights change."""
        self.sampling_log = SamplingLog()
        """Every sampling of every turn, in order."""
        self.sessions = sessions
        self._generate, self._prompter, self._tools = generate, prompter, tools
        self._strict, self._api_key, self._parse = strict, api_key, parse
        fingerprint = prompter.tokenizer.fingerprint
        self._about = {
            HEADER_KEEPS_IDS: str(prompter.keeps_ids).lower(),
            HEADER_FINGERPRINT: "/".join(
                (fingerprint.tokenizer_sha256, fingerprint.template_sha256, fingerprint.transformers_version)
            ),
        }
        self._starlette = Starlette(
            routes=[
                Route("/v1/chat/completions", self._completions, methods=["POST"]),
                Route("/v1/sessions/{rollout_id:path}", self._drop_session, methods=["DELETE"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            exception_handlers={EndpointError: _refuse},
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._starlette(scope, receive, send)

    def get_session(self, rollout_id: str, uid: str | None = None) -> Session:
        """What this endpoint knows of a rollout.

        Args:
            rollout_id: as in the requests; of several rollouts with this name the one that was opened last.
            uid: the pool's own id, to name one of them.

        Raises:
            KeyError: no such session; it never was, or it was dropped (age, number, DELETE).
        """
        session = self.sessions.named(rollout_id) if uid is None else self.sessions.find((rollout_id, uid))
        if session is None:
            raise KeyError(f"no session of rollout {rollout_id!r}: never asked, or dropped since")
        return session

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        try:
            await self._tools.get()
        except EndpointError as refusal:
            # The pool may start after its trainer; each request tries again until one succeeds.
            logger.warning("%s", refusal.message)
        yield

    async def _health(self, _request: Request) -> Response:
        return _json(200, orjson.dumps({"status": "healthy", "sessions": len(self.sessions)}))

    async def _drop_session(self, request: Request) -> Response:
        self._authorise(request)
        rollout_id = request.path_params["rollout_id"]
        if not self.sessions.drop(rollout_id):
            raise EndpointError(404, "not_found", "there is no session of this rollout", rollout_id=rollout_id)
        return Response(status_code=204)

    async def _completions(self, request: Request) -> Response:
        self._authorise(request)
        ask = parse_request(request.headers, await request.body())
        reply = await self._reply(ask)
        return _json(200, reply.body, {**reply.headers, **self._about})

    def _authorise(self, request: Request) -> None:
        if self._api_key is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode()):
            raise EndpointError(
                401, "unauthorized", "send this endpoint's key as Authorization: Bearer <callback_api_key>"
            )

    async def _reply(self, ask: TurnRequest) -> TurnReply:
        key = session_key(ask)
        session = self.sessions.find(key)
        if session is None or session.restarts_with(ask):
            session = Session(*key)
        verdict = session.admit(ask)
        if isinstance(verdict, Turn):
            return _reply(verdict, ask, *session.tokens_of(verdict))
        if isinstance(verdict, int):
            task = asyncio.create_task(self._sample_turn(session, ask, verdict))
            task.add_done_callback(_retrieve)
            verdict = session.running = RunningTurn(verdict, ask.digest, task)
            self.sessions.put(key, session)
        # The generation outlives whoever asked for it: the next attempt will ask again, and join it.
        await asyncio.wait({verdict.task})
        return verdict.task.result()

    async def _sample_turn(self, session: Session, ask: TurnRequest, number: int) -> TurnReply:
        try:
            return await self._sample_turn_checked(session, ask, number)
        finally:
            session.running = None

    async def _sample_turn_checked(self, session: Session, ask: TurnRequest, number: int) -> TurnReply:
        tools = await self._tools.get()
        messages = [message.wire() for message in ask.request.messages]
        prompt = await self._prompt(session, ask, messages, tools)
        expected = len(prompt.ids) - (0 if ask.edited else len(session.ledger)) if session.turns else 0
        try:
            check_mask(ask.mask, expected, rollout_id=session.rollout_id, turn=number)
        except MaskMismatch:
            session.mismatches += 1
            if self._strict:
                raise
        request = ask.request
        params = GenerateParams(
            rollout_id=session.rollout_id,
            turn=number,
            messages=messages,
            tools=tools,
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_tokens,
            stop=request.stop,
            logprobs=request.logprobs,
            extra=ask.extra,
        )
        generation, message = await self._sample(prompt, params)
        head = _head(request.model, message, generation)
        turn = session.commit(ask, number, prompt, generation, head, message_digest(message))
        record = LoggedTurn(session.rollout_id, session.uid, number, ask.attempt, tuple(generation.token_ids))
        self.sampling_log.add(record)
        return _reply(turn, ask, prompt.ids, list(generation.token_ids), list(generation.logprobs))

    async def _prompt(
        self, session: Session, ask: TurnRequest, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> Prompt:
        known = len(session.history)
        appended = None
        if session.turns and not ask.edited and ask.history[:known] == session.history:
            # An assistant message that this endpoint did not sample is an edit too.
            appended = None if any(m["role"] == "assistant" for m in messages[known:]) else len(messages) - known
        try:
            if ask.size <= INLINE_BYTES:
                return self._prompter.prompt(messages, tools, session.ledger, appended)
            return await asyncio.to_thread(self._prompter.prompt, messages, tools, session.ledger, appended)
        except TemplateRefused as error:
            raise EndpointError(
                400,
                "template_refused",
                f"the chat template cannot render these messages: {error.message}",
                rollout_id=session.rollout_id,
            ) from error

    async def _sample(self, prompt: Prompt, params: GenerateParams) -> tuple[Generation, Message]:
        version = self.policy_version
        try:
            generation = await sample(self._generate, prompt.ids, params)
            ids = generation.token_ids
            tokenizer = self._prompter.tokenizer
            message = self._parse(tokenizer.decode(ids[:-1] if ids[-1] in tokenizer.stop_ids else ids))
        except Exception as error:
            logger.exception("rollout %s, turn %d: the policy failed", params.rollout_id, params.turn)
            raise EndpointError(
                500,
                "generate_failed",
                f"the policy failed with {type(error).__name__}; see the trainer's log. Asking again is safe",
                rollout_id=params.rollout_id,
                turn=params.turn,
            ) from error
        if generation.policy_version is None:
            generation = replace(generation, policy_version=version)
        return generation, message


def callback_app(
    generate: Generate,
    *,
    tokenizer: ChatTokenizer | str,
    tools: Sequence[dict[str, Any] | ToolDefinition] | str | None = None,
    strict: bool = True,
    keeps_ids: bool = True,
    api_key: str | None = None,
    pool_api_key: str | None = None,
    template_kwargs: dict[str, Any] | None = None,
    parse: Callable[[str], Message] = parse_tool_calls,
    policy_version: str | None = None,
    max_sessions: int = 16_384,
    session_ttl: float = 3600.0,
) -> CallbackApp:
    """A trainer endpoint to mount or to serve.

    Args:
        generate: the policy: `(prompt_ids, GenerateParams) -> Generation`, plain (runs in a thread) or async.
        tokenizer: the one that the rollouts name, loaded or by name or directory.
        tools: what goes into the prompts: definitions, or the pool's base URL, whose `GET /tools` is read once.
        strict: answer 422 to a wrong `response_mask`; otherwise count it in `Session.mismatches`.
        keeps_ids: continue the ids that were sampled; otherwise render the whole history again each turn.
        api_key: demanded as bearer token, where set.
        pool_api_key: for `tools` by URL, if that pool wants a key; ROLLOUTPOOL_API_KEY where None.
        template_kwargs: for the chat template; must be what the rollouts' `template_kwargs` are.
        parse: from a turn's text, without its stop token, to the assistant message that the agent gets.
        policy_version: sent as X-Policy-Version with turns whose generation names none.
        max_sessions: how many rollouts to remember; the least recently used goes first.
        session_ttl: seconds after which an unused session is forgotten.

    Raises:
        TokenizerLoadFailed: the tokenizer cannot be loaded.
    """
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    return CallbackApp(
        generate,
        prompter=Prompter(loaded, keeps_ids, dict(template_kwargs or {})),
        tools=ToolSource(tools, pool_api_key or key_from_environment()),
        strict=strict,
        api_key=api_key,
        parse=parse,
        policy_version=policy_version,
        sessions=SessionStore(max_sessions, session_ttl),
    )


def _retrieve(task: asyncio.Task[TurnReply]) -> None:
    """Marks the task's error as seen, for a turn whose askers have all gone."""
    if not task.cancelled():
        task.exception()


def _head(model: str, message: Message, generation: Generation) -> dict[str, Any]:
    calls = generation.finish_reason == "stop" and message.tool_calls
    finish_reason = "tool_calls" if calls else generation.finish_reason
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message.wire(), "finish_reason": finish_reason}],
    }


def _reply(turn: Turn, ask: TurnRequest, prompt_ids: list[int], ids: list[int], logprobs: list[float]) -> TurnReply:
    headers = {} if turn.policy_version is None else {HEADER_POLICY_VERSION: turn.policy_version}
    prefix, digest = ask.echo or (0, "")
    if prefix and prefix <= len(prompt_ids) and _digest(prompt_ids[:prefix]) == digest:
        headers[HEADER_ECHO_PREFIX] = str(prefix)
        prompt_ids = prompt_ids[prefix:]
    document = {**turn.head, "token_ids": ids, "logprobs": logprobs, "prompt_token_ids": prompt_ids}
    return TurnReply(orjson.dumps(document), headers)


def _digest(ids: list[int]) -> str:
    """Of our own ids, never of what the pool claims them to be."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return hashlib.blake2b(packed.tobytes(), digest_size=16).hexdigest()


def _json(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, EndpointError)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(error.status)
    return _json(error.status, error.body(), headers)
