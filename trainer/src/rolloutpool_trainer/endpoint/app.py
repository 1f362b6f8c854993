"""A trainer's `/v1/chat/completions` around any policy that turns prompt ids into sampled ids.

One call is one turn of one rollout. It is handled in six steps, which the functions below follow from top to bottom:

1. **Parse** the request (`request.py`); what cannot be read is refused with 400 or 422.
2. **Find the session** of its rollout. One that was forgotten is restored from the pool's ids (`session_proof.py`). A
   turn that is finished or being sampled ends here: the first is answered again byte for byte, the second is waited
   for. So a turn is sampled once, however often the pool has to ask. Each answer and `GET /health` say so
   (`X-Idempotent-Turns`), so that a batch need not declare `idempotent: true`.
3. **Render** the prompt and **check the mask**: `response_mask` must be one 0 per token that was added since the policy
   last sampled. The session's ledger knows that number. A strict endpoint refuses a wrong mask, any other counts it.
4. **Sample** the turn (`policy.py`) and parse its text into the agent's message.
5. **Remember** it: the session's ledger gets the tokens, the sampling log a record. An error before this step leaves no
   trace, so asking again is safe.
6. **Answer** with ids, log-probabilities and the prompt that the policy saw. Each answer names its turn (`turn_key`).

Sessions live in the memory of one process and one event loop. `get_session(rollout_id)` shows a rollout's mask: it is 1
if and only if the policy sampled the token.
"""

import asyncio
import hmac
import logging
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

from rolloutpool_common.errors import TemplateUnusable
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_common.protocol.turn_headers import (
    HEADER_FINGERPRINT,
    HEADER_IDEMPOTENT,
    HEADER_KEEPS_IDS,
    write_fingerprint,
)
from rolloutpool_common.rendering import ChatTokenizer, TemplateRefused, load_tokenizer
from rolloutpool_trainer.client.transport import key_from_environment
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.mask_check import MaskMismatch, check_mask
from rolloutpool_trainer.endpoint.parsing import SampledParser
from rolloutpool_trainer.endpoint.pausing import SamplingGate
from rolloutpool_trainer.endpoint.policy import EndpointPolicy, Generate, GenerateParams, Generation, sample
from rolloutpool_trainer.endpoint.policy_failures import PolicyFailures, policy_failed
from rolloutpool_trainer.endpoint.prompt_check import PromptCheck
from rolloutpool_trainer.endpoint.prompts import Prompt, Prompter
from rolloutpool_trainer.endpoint.reply import TurnReply, TurnTokens, turn_head, turn_reply
from rolloutpool_trainer.endpoint.request import TurnRequest, message_digest, parse_request
from rolloutpool_trainer.endpoint.sampling_log import LoggedTurn, SamplingLog
from rolloutpool_trainer.endpoint.session_proof import SessionProof, SessionUnproved
from rolloutpool_trainer.endpoint.session_store import SessionStore, session_key
from rolloutpool_trainer.endpoint.sessions import RunningTurn, Session, Turn
from rolloutpool_trainer.endpoint.tool_source import ToolSource
from rolloutpool_trainer.endpoint.turn_key import naming_the_turn

logger = logging.getLogger(__name__)

INLINE_BYTES = 32_768
"""Bodies up to here are rendered on the event loop: they take less than a millisecond, and a thread would cost more."""


def callback_app(
    generate: Generate,
    *,
    tokenizer: ChatTokenizer | str,
    tools: Sequence[dict[str, Any] | ToolDefinition] | str | None = None,
    only: Sequence[str] | None = None,
    strict: bool = True,
    keeps_ids: bool = True,
    check_every: int = 64,
    api_key: str | None = None,
    pool_api_key: str | None = None,
    template_kwargs: dict[str, Any] | None = None,
    parse: Callable[[str], Message] | None = None,
    policy_version: str | None = None,
    max_sessions: int = 16_384,
    session_ttl: float = 3600.0,
) -> "CallbackApp":
    """Makes a trainer's endpoint, to mount or to serve.

    Args:
        generate: The policy, `(prompt_ids, GenerateParams) -> Generation`. Async, or plain (then it runs in a thread).
            A function that samples many prompts at once becomes one by `batched`.
        tokenizer: The one that the rollouts name: loaded, or as name or directory.
        tools: What goes into the prompts: definitions, or the pool's base URL, whose `GET /tools` is read once.
        only: Names of the tools that the prompts show, in the order of `tools`; None shows all. Give it where the
            rollouts' `tools` name the same.
        strict: Answer 422 to a wrong `response_mask`; otherwise it is only counted in `Session.mismatches`.
        keeps_ids: Continue the ids that were sampled; otherwise the whole history is rendered again each turn.
        check_every: With `keeps_ids`, compare the prompt of every so many turns with a full render of the conversation,
            besides the first turn of each shape of conversation; 0 for these alone. A full render of 8,000 ids takes
            30 ms. A prompt that differs is answered with 422.
        api_key: If set, each call must bring it as bearer token.
        pool_api_key: The pool's key, where `tools` is its URL; None takes ROLLOUTPOOL_API_KEY.
        template_kwargs: For the chat template. They must be the rollouts' `template_kwargs`.
        parse: Makes the agent's message from a turn's text without its stop token; the same from the same text, but
            for call ids, or no session can be restored. None finds calls as the tokenizer's chat template writes them,
            and between `<tool_call>` tags.
        policy_version: Sent as X-Policy-Version with turns whose generation names none.
        max_sessions: How many rollouts to remember; the least recently used is forgotten first.
        session_ttl: Seconds after which an unused session is forgotten.

    Raises:
        TokenizerLoadFailed: The tokenizer cannot be loaded.
        ValueError: `only` names a tool that `tools` does not define.
    """
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    kwargs = dict(template_kwargs or {})
    return CallbackApp(
        EndpointPolicy(generate, parse, policy_version),
        prompter=Prompter(loaded, keeps_ids, kwargs, PromptCheck(loaded, kwargs, check_every)),
        tools=ToolSource(tools, pool_api_key or key_from_environment(), only),
        strict=strict,
        api_key=api_key,
        sessions=SessionStore(max_sessions, session_ttl),
    )


class CallbackApp:
    """The ASGI app that `callback_app` makes. Mount it, or serve it with `serve_callback`."""

    def __init__(
        self,
        policy: EndpointPolicy,
        *,
        prompter: Prompter,
        tools: ToolSource,
        strict: bool,
        api_key: str | None,
        sessions: SessionStore,
    ) -> None:
        """Takes the parts that `callback_app` makes; call that function instead."""
        self.policy_version = policy.version
        """Reported for turns whose generation names none. Set it while the app is paused."""
        self.sampling_log = SamplingLog()
        """Every sampling of every turn, in order."""
        self.sessions = sessions
        self._generate, self._prompter, self._tools = policy.generate, prompter, tools
        self._strict, self._api_key = strict, api_key
        self._parser = SampledParser(prompter.tokenizer, policy.parse)
        self._proof = SessionProof(prompter, self._parser)
        self._gate = SamplingGate()
        self._failures = PolicyFailures()
        self._about = {
            HEADER_IDEMPOTENT: "true",
            HEADER_KEEPS_IDS: str(prompter.keeps_ids).lower(),
            HEADER_FINGERPRINT: write_fingerprint(prompter.tokenizer.fingerprint, prompter.tokenizer.name),
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
        """Handles one connection, as ASGI defines it."""
        await self._starlette(scope, receive, naming_the_turn(scope, send))

    async def read_tools(self) -> None:
        """Reads the tools of the prompts now, which the first turn would do otherwise; raises `EndpointError`."""
        await self._tools.get()

    def pause(self, timeout: float | None = None) -> None:
        """Lets turns that are being sampled end, and holds new ones until `resume`: in between, update the weights.

        Workers wait for as long as a call may take (`HTTP_CLIENT_TIMEOUT`, 300 s). Call it in the trainer's thread.

        Args:
            timeout: Seconds for the turns that are being sampled; None waits without limit.

        Raises:
            TimeoutError: Turns are still being sampled. The app is not paused.
            RuntimeError: It was called on the app's own event loop.
        """
        self._gate.close(timeout)

    def resume(self, policy_version: str | None = None) -> None:
        """Ends `pause`; all turns that were held are sampled.

        Args:
            policy_version: The new weights' name; None keeps `policy_version`.
        """
        if policy_version is not None:
            self.policy_version = policy_version
        self._gate.open()

    def get_session(self, rollout_id: str, uid: str | None = None) -> Session:
        """Returns what this endpoint knows of a rollout.

        Args:
            rollout_id: As in the requests. If several rollouts have this name, the one that was opened last is meant.
            uid: The pool's own id, to name one of them.

        Raises:
            KeyError: There is no such session: it never existed, or it was dropped (age, number, DELETE).
        """
        session = self.sessions.named(rollout_id) if uid is None else self.sessions.find((rollout_id, uid))
        if session is None:
            raise KeyError(f"no session of rollout {rollout_id!r}: never asked, or dropped since")
        return session

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        try:
            await self._tools.get()
        except EndpointError as error:
            # The pool may start after its trainer; each request tries again until one succeeds.
            logger.warning("%s", error.message)
        yield

    async def _health(self, _http: Request) -> Response:
        body = orjson.dumps({"status": "healthy", "sessions": len(self.sessions)})
        return _json(200, body, {HEADER_IDEMPOTENT: "true"})

    async def _drop_session(self, http: Request) -> Response:
        self._authorise(http)
        rollout_id = http.path_params["rollout_id"]
        if not self.sessions.drop(rollout_id):
            raise EndpointError(404, "not_found", "there is no session of this rollout", rollout_id=rollout_id)
        return Response(status_code=204)

    async def _completions(self, http: Request) -> Response:
        """Step 1: parses the request."""
        self._authorise(http)
        request = parse_request(http.headers, await http.body())
        reply = await self._reply(request)
        return _json(200, reply.body, {**reply.headers, **self._about})

    def _authorise(self, http: Request) -> None:
        if self._api_key is None:
            return
        # As bytes, because `compare_digest` raises for text with other characters than ASCII.
        given = http.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode()):
            raise EndpointError(
                401, "unauthorized", "send this endpoint's key as Authorization: Bearer <callback_api_key>"
            )

    async def _reply(self, request: TurnRequest) -> TurnReply:
        """Step 2: finds the session, and repeats, joins or begins the turn."""
        key = session_key(request)
        session = self.sessions.find(key)
        if session is None or session.restarts_with(request):
            session = Session.open(request)
        turn = session.admit(request)
        if isinstance(turn, Turn):
            return turn_reply(turn.head, session.tokens_of(turn), turn.policy_version, request)
        # Nothing is awaited between `admit` and `session.running`, so two equal requests can't both begin the turn.
        if not isinstance(turn, RunningTurn):
            task = asyncio.create_task(self._sample_turn(session, request, turn.number))
            task.add_done_callback(_mark_error_as_seen)
            turn = session.running = RunningTurn(turn.number, request.digest, task)
            # Only now: a request that was refused leaves no empty session, and a restart keeps the old one until here.
            self.sessions.put(key, session)
        # `wait` leaves the task running if this caller disconnects, where `await` would cancel it: the rollout's next
        # attempt asks again, and joins it.
        await asyncio.wait({turn.task})
        return turn.task.result()

    async def _sample_turn(self, session: Session, request: TurnRequest, number: int) -> TurnReply:
        """Steps 3 to 6; while they run, the session says that this turn is being sampled."""
        try:
            # A rollout in an environment brings the tools of its session.
            tools = request.tools or await self._tools.get()
            messages = [message.wire() for message in request.body.messages]
            prompt = await self._render(session, request, messages, tools)
            self._check_mask(session, request, number, prompt)
            if session.is_unproved:
                logger.info("rollout %s, turn %d: the session is restored", session.rollout_id, number)
            params = request.generate_params(session.rollout_id, number, messages, tools)
            generation, message = await self._sample(prompt, params)
            return self._remember(session, request, number, prompt, generation, message)
        finally:
            session.running = None
            # What was claimed for it may be wrong. A later request must bring, and prove, all of it again.
            if session.is_unproved:
                self.sessions.discard(session)

    async def _render(
        self,
        session: Session,
        request: TurnRequest,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> Prompt:
        appended = session.appended(request)
        if request.prompt_ids is not None and request.forked_from is not None and not session.begun:
            self._check_ids(session, request.prompt_ids)
            if self._prompter.keeps_ids:
                return Prompt(request.prompt_ids, None)
        try:
            if session.is_unproved and request.past is not None and not request.edited:
                return await asyncio.to_thread(self._proof.prompt, request.past, messages, tools)
            if request.size <= INLINE_BYTES:
                return self._prompter.prompt(messages, tools, session.ledger, appended)
            # Safe in a thread: the ledger changes only in `commit`, and this turn is the only one that runs.
            return await asyncio.to_thread(self._prompter.prompt, messages, tools, session.ledger, appended)
        except SessionUnproved as error:
            error.details["rollout_id"] = session.rollout_id
            logger.warning("rollout %s: %s", session.rollout_id, error.message)
            raise
        except (TemplateRefused, TemplateUnusable) as error:
            raise EndpointError(
                400,
                "template_refused",
                f"the chat template cannot render these messages: {error.message}",
                rollout_id=session.rollout_id,
            ) from error

    def _check_ids(self, session: Session, prompt_ids: list[int]) -> None:
        size = self._prompter.tokenizer.vocab_size
        if max(prompt_ids) >= size:
            raise EndpointError(
                422,
                "bad_request",
                f"prompt_token_ids has id {max(prompt_ids)}, and this tokenizer has {size} ids",
                rollout_id=session.rollout_id,
            )

    def _check_mask(self, session: Session, request: TurnRequest, number: int, prompt: Prompt) -> None:
        # After an edit the mask covers the whole prompt; otherwise what the prompt adds to the ledger.
        past = request.past if session.is_unproved else None
        covered_before = 0 if request.edited else len(session.ledger if past is None else past.token_ids)
        expected = len(prompt.ids) - covered_before if session.begun or past is not None else 0
        cut = session.begun and not request.edited and session.appended(request) is None
        try:
            check_mask(request.mask, expected, rollout_id=session.rollout_id, turn=number, cut=cut)
        except MaskMismatch:
            session.mismatches += 1
            # A session is restored from nothing that is in doubt.
            if self._strict or past is not None:
                raise

    async def _sample(self, prompt: Prompt, params: GenerateParams) -> tuple[Generation, Message]:
        sampled: Sequence[int] = ()
        try:
            async with self._gate.sampling():
                version = self.policy_version  # read before sampling: the weights may change while it is sampled
                generation = await sample(self._generate, prompt.ids, params)
            sampled = generation.token_ids
            message = self._parser.message(sampled, params.tools)
        except Exception as error:
            self._failures.log(error, params)
            raise policy_failed(error, params, self._prompter.tokenizer.decode(sampled)) from error
        if generation.policy_version is None:
            generation = replace(generation, policy_version=version)
        return generation, message

    def _remember(
        self,
        session: Session,
        request: TurnRequest,
        number: int,
        prompt: Prompt,
        generation: Generation,
        message: Message,
    ) -> TurnReply:
        """Steps 5 and 6: makes the turn part of the session, and writes the answer."""
        head = turn_head(request.body.model, message, generation)
        session.commit(request, number, prompt, generation, head, message_digest(message))
        self.sampling_log.add(
            LoggedTurn(session.rollout_id, session.uid, number, request.attempt, tuple(generation.token_ids))
        )
        tokens = TurnTokens(prompt.ids, list(generation.token_ids), list(generation.logprobs))
        return turn_reply(head, tokens, generation.policy_version, request)


def _mark_error_as_seen(task: asyncio.Task[TurnReply]) -> None:
    """Keeps asyncio from logging the error of a turn whose callers have all disconnected."""
    if not task.cancelled():
        task.exception()


def _json(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


async def _refuse(_http: Request, error: Exception) -> Response:
    assert isinstance(error, EndpointError)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(error.status)
    return _json(error.status, error.body(), headers)
