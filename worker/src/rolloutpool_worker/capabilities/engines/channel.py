"""EngineChannel: how a rollout asks an inference engine for a turn. Ids go out, ids come back.

The prompt is the ledger, so no message travels, and nothing can drift. One turn takes these steps:

1. The engine's context length is known before anything is sent (`engines`), and `max_tokens` is what fits. If nothing
   fits, the turn ends at once with `length` and without ids.
2. The call is written (`api`), sent (`policy.endpoint`), and its reply checked (`reply`).
3. An engine may **abort** a call, for a weight update. The ids so far were sampled, so they are kept. The turn goes on:
   prompt and ids are the next prompt, and the rest of `max_tokens` is its budget. A new part of the turn begins there,
   because other weights may sample it.
4. An engine may be **paused** (503 of vLLM; SGLang lets a call wait). That is no failure and counts as no try: the turn
   is asked again every few seconds, for `pause_seconds` at most. Calls may take so much longer than usual ones.
5. Any other failure is repeated up to `attempts` times. Asking again is always safe, because an engine keeps nothing:
   a reply that was lost is in nobody's data, and the turn is sampled anew.

Example: `max_tokens` is 8. The engine samples 5 6 7 and aborts; it is asked again with the prompt and 5 6 7, and
`max_tokens` 5; it samples 8 9 and stops. The turn is 5 6 7 8 9, in two parts.

The **salt** keeps apart what engines cache of prompts: nothing that older weights have computed may be used, and weight
updates do not empty these caches. So it is the version of the weights at the rollout's start, and stays the same over
its turns: first what the engine says of itself (`engines`), then the version of the first sampled id. Where neither is
known, the rollout's own name is used.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from rolloutpool_common.capabilities.engines.kept import PackedPiece
from rolloutpool_common.errors import (
    PromptTooLong,
    RolloutError,
    TrainerProtocolError,
    TrainerStatusError,
    TrainerUnreachable,
)
from rolloutpool_common.outcomes import Category
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.process.metrics import IN_PAUSE
from rolloutpool_common.protocol.endpoint import EndpointProtocol
from rolloutpool_common.protocol.trace import HEADER_TRACEPARENT
from rolloutpool_common.protocol.turn_headers import branch_name
from rolloutpool_worker.capabilities.engines.api import EngineApi, EngineCall
from rolloutpool_worker.capabilities.engines.engines import Engines
from rolloutpool_worker.capabilities.engines.reply import EngineTurn, Finish, ReplyReader, SampledCall, check_call
from rolloutpool_worker.capabilities.engines.sglang import SglangApi
from rolloutpool_worker.capabilities.engines.vllm import VllmApi
from rolloutpool_worker.policy.asking import Asking
from rolloutpool_worker.policy.callback import BACKOFF, OFF_LOOP_BYTES
from rolloutpool_worker.policy.endpoint import TrainerEndpoint
from rolloutpool_worker.policy.foreign_reply import ForeignReply
from rolloutpool_worker.policy.reply import SampledPart

_log = logging.getLogger(__name__)

PAUSE = Backoff(first_s=0.25, longest_s=4.0)
"""Between two calls of a paused engine."""
ASK_SECONDS = 5.0
"""For what an engine says of itself."""
MOST_SALT = 1024
"""Characters; vLLM takes no more."""
_NO_VERSION = frozenset({"", "default"})
"""Names that weights have before anybody named them."""
_NOT_THERE = frozenset({403, 404, 405})
_PAUSED = 503
_TOO_LONG = 400


@dataclass(frozen=True)
class LedgerPrompt:
    """The prompt of a turn."""

    text: bytes
    """The ids as numbers and commas."""
    length: int
    first_version: str | None = None
    """Of the weights that have sampled the rollout's first id; None before that, and where it is not known."""
    routed_from: int = 0
    """Offset of the first id that the policy has not been asked to go on from yet: its last sampled one."""


class EngineChannel:
    """Asks the engine of one rollout for its turns."""

    def __init__(
        self, asking: Asking, engines: Engines, *, group: str | None, pause_seconds: float, stop_ids: frozenset[int]
    ) -> None:
        """Prepares what is equal in every call."""
        spec, self._asking = asking.spec, asking
        self._endpoint = TrainerEndpoint(asking.client, asking.breakers, spec, reply_limits=asking.reply_limits)
        self._api: EngineApi = (
            VllmApi(spec, sorted(stop_ids))
            if spec.protocol is EndpointProtocol.VLLM
            else SglangApi(spec, sorted(stop_ids))
        )
        self._spec = spec
        self._uid = asking.uid
        self._group = group
        self._pause_seconds = pause_seconds
        self._seconds = asking.client.seconds + pause_seconds
        self._before_call = asking.before_call
        self._engines = engines
        self._waits = asking.waits
        self._calls = 0
        key = spec.callback_api_key
        self._key = {"Authorization": f"Bearer {key}"} if key else {}

    async def sample(self, turn: int, prompt: LedgerPrompt, *, branch: int = 0) -> EngineTurn:
        """Has the engine sample one turn."""
        where = f"turn {turn} at {self._spec.server_url}"
        uid = branch_name(self._uid, branch)
        session = self._group if turn == 1 and self._group else uid
        # First, because an engine that nobody reaches is to fail the turn, and not the question for its weights.
        await self._room(prompt.length, 0, where)
        salt = ""
        parts: list[SampledPart] = []
        attached: list[PackedPiece] = []
        text, done, aborts, idle = prompt.text, 0, 0, 0
        started = time.monotonic()
        while (left := await self._room(prompt.length, done, where)) > 0:
            gated = time.monotonic()
            salt = await self._let_through(prompt, done, salt)
            # What a paused run takes is not the engine's: it has a limit of its own.
            started += time.monotonic() - gated
            length = prompt.length + done
            routed_from = length - 1 if done else prompt.routed_from
            call = EngineCall(f"{uid}/{turn}", session, text, left, salt, length, routed_from)
            sampled = await self._call(call, turn, where, partial(self._let_through, prompt, done))
            if sampled is None:
                continue  # by another path, or for less, because the context is shorter than it was taken to be
            if len(sampled.ids) > left:
                raise TrainerProtocolError(f"{where}: {len(sampled.ids)} ids were sampled, {left} were asked for")
            parts += (
                SampledPart(sampled.ids[s.start : s.end], sampled.logprobs[s.start : s.end], s.version)
                for s in sampled.spans
            )
            attached += sampled.pieces(turn, length)
            done += len(sampled.ids)
            if sampled.finish is not Finish.ABORT:
                return EngineTurn(tuple(parts), sampled.finish, aborts, attachments=tuple(attached))
            aborts += 1
            if sampled.ids:
                text, idle, started = b",".join((text, orjson.dumps(sampled.ids)[1:-1])), 0, time.monotonic()
                continue
            # Nothing was sampled since the last time, so the next call would probably be aborted as well.
            idle += 1
            await self._wait_for_engine(
                TrainerStatusError(f"{where}: the engine aborted", status=_PAUSED), idle, started
            )
        if turn == 1 and not done:
            raise PromptTooLong(f"{where}: the prompt has {prompt.length} ids, and the engine's context has no more")
        return EngineTurn(tuple(parts), Finish.LENGTH, aborts, attachments=tuple(attached))

    async def _room(self, prompt: int, done: int, where: str) -> int:
        """How many more ids may be sampled in this turn."""
        spec = self._spec

        async def ask() -> Any:
            return await self._repeated(lambda: self._get("/v1/models", where), where, self._before_call)

        length = await self._engines.context_length(spec.server_url, spec.model, ask)
        wanted = spec.sampling_params.max_tokens - done
        return wanted if length is None else min(wanted, self._api.room(length, prompt + done))

    async def _let_through(self, prompt: LedgerPrompt, done: int, salt: str) -> str:
        """Waits until the next call may be made, and returns its salt, which is the last call's if that has sampled."""
        if done or prompt.first_version is not None:
            await self._before_call(midway=done > 0)
            return salt if done else self._salt(prompt.first_version)
        weights = await self._weights()
        # A run is paused for the very update that the answer has to name.
        while await self._before_call(weights=weights):
            weights = await self._weights()
        return self._salt(weights)

    async def _weights(self) -> str | None:
        """Asks what the engine's weights are called now; None where nobody says it."""
        origin = self._spec.server_url

        async def ask() -> str | None:
            document = await self._get(self._api.version_path, f"the weights of {origin}")
            found = document.get("weight_version") if isinstance(document, dict) else None
            return str(found) if isinstance(found, str | int) else None

        return await self._engines.version(origin, ask, self._wait)

    def _salt(self, version: str | None) -> str:
        # `<=12` may be older weights.
        known = version is not None and version not in _NO_VERSION and not version.startswith("<=")
        return (version if known and version is not None else self._uid)[:MOST_SALT]

    async def _call(
        self, call: EngineCall, turn: int, where: str, let_through: Callable[[str], Awaitable[str]]
    ) -> SampledCall | None:
        """Makes one call until it has a reply; None where the engine refused it, and said how it may be asked."""
        parent = self._asking.trace.traceparent(turn)
        traced = {} if parent is None else {HEADER_TRACEPARENT: parent}
        of_turn = call.name

        async def post() -> SampledCall | None:
            nonlocal call
            # An engine refuses two requests of one name at the same time, and may be busy with one for some seconds
            # after its connection has broken. So attempts and calls are counted.
            self._calls += 1
            call = replace(call, name=f"{of_turn}.{self._asking.attempt}.{self._calls}")
            path = self._path()
            headers = {
                "Content-Type": "application/json",
                "X-Request-ID": call.name,  # vLLM prefers it to the body, and gateways add one where it is missing
                "X-Session-ID": call.session,
                "X-SMG-Routing-Key": call.session,
                **traced,
                **self._key,
            }
            try:
                reply = await self._endpoint.ask(
                    "POST", path, self._api.body(path, call), headers, where, seconds=self._seconds
                )
            except TrainerStatusError as error:
                if self._learn(error, path):
                    return None
                raise
            try:
                if len(reply.data) - len(call.prompt) > OFF_LOOP_BYTES:
                    return await asyncio.to_thread(self._read, path, reply.data, call, where)
                return self._read(path, reply.data, call, where)
            except ForeignReply as error:
                reply.discard()
                raise TrainerUnreachable(f"{where}: {error}") from error

        async def again() -> None:
            nonlocal call
            # The engine may have got other weights since.
            call = replace(call, salt=await let_through(call.salt))

        sampled: SampledCall | None = await self._repeated(post, where, again, samples=True)
        return sampled

    def _read(self, path: str, data: bytes, call: EngineCall, where: str) -> SampledCall:
        reader = ReplyReader(data, call.prompt, where)
        # First: what else is wrong with another call's reply would be the wrong diagnosis.
        check_call(self._api.names(reader), call.name)
        sampled = self._api.read(path, reader)
        if not self._spec.attach or not sampled.ids:
            return sampled
        return replace(sampled, attachments=tuple(self._api.attachments(reader, call, sampled.ids)))

    def _path(self) -> str:
        *best, last = self._api.paths
        return next((path for path in best if not self._engines.lacks(self._spec.server_url, path)), last)

    def _learn(self, error: TrainerStatusError, path: str) -> bool:
        """Whether a refusal tells something of the engine, so that the same turn may be asked in another way."""
        origin = self._spec.server_url
        if error.http_status in _NOT_THERE and path != self._api.paths[-1]:
            self._engines.learn_lack(origin, path)
            return True
        length = self._api.told_context(error.said) if error.http_status == _TOO_LONG else None
        if length is None:
            return False
        known = self._engines.known_length(origin, self._spec.model)
        # Only once: an engine that refuses what fits into the length that it names would be asked for ever.
        if known is not None and known <= length:
            return False
        self._engines.learn_context_length(origin, self._spec.model, length)
        return True

    async def _get(self, path: str, where: str) -> Any:
        """Gets a JSON document; None where the engine has no such path."""
        try:
            reply = await self._endpoint.ask("GET", path, b"", self._key, where, seconds=ASK_SECONDS)
            return orjson.loads(reply.data)
        except orjson.JSONDecodeError as error:
            # A gateway's page, for instance: it says nothing of the engine.
            raise TrainerUnreachable(f"{where}: {path} answered something that is not JSON") from error
        except TrainerStatusError as error:
            if error.http_status in _NOT_THERE:
                return None
            raise

    async def _repeated(
        self,
        ask: Callable[[], Awaitable[Any]],
        where: str,
        let_through: Callable[[], Awaitable[object]],
        *,
        samples: bool = False,
    ) -> Any:
        """Asks until there is an answer, within the limits of steps 4 and 5; a turn may have failed before a drain."""
        waits = self._waits if samples else None
        failures, pauses, started = 0, 0, time.monotonic()
        if waits is not None:
            failures = min(waits.tried, self._asking.attempts - 1)
        while True:
            try:
                if self._waits is None:
                    return await ask()
                call = self._waits.asks(where)
                try:
                    answer = await ask()
                finally:
                    if (reported := call.end()) is not None:
                        await reported
            except (TrainerUnreachable, TrainerStatusError, TrainerProtocolError) as error:
                if error.http_status == _PAUSED:
                    pauses += 1
                    await self._wait_for_engine(error, pauses, started)
                    gated = time.monotonic()
                    await let_through()
                    started += time.monotonic() - gated
                    continue
                if isinstance(error, TrainerStatusError) and error.category is Category.MASK_REFUSED:
                    # An engine knows no masks; its 422 is a field that it does not take.
                    error.category = Category.TRAINER_CLIENT_ERROR
                failures += 1
                if waits is not None:
                    waits.tried = failures if error.retryable else 0
                if failures >= self._asking.attempts or not error.retryable:
                    raise
                asked = error.retry_after if isinstance(error, TrainerStatusError) else None
                wait = BACKOFF.delay_s(failures) if asked is None else min(asked, BACKOFF.longest_s)
                log_event(_log, logging.DEBUG, "model call failed", error=error.message, again_in_s=round(wait, 1))
                await self._wait(error, failures, wait)
                await let_through()
            else:
                if waits is not None:
                    waits.tried = 0
                if self._waits.now is not None:
                    await self._waits.worked()
                return answer

    async def _wait_for_engine(self, error: RolloutError, times: int, started: float) -> None:
        if time.monotonic() - started > self._pause_seconds:
            raise error
        await self._wait(error, times, PAUSE.delay_s(times))

    async def _wait(self, error: RolloutError, tries: int, seconds: float) -> None:
        if self._waits is not None:
            await self._waits.failed(error, tries, seconds)
        # A border: no call is in flight here, so a drain may end the turn.
        with IN_PAUSE:
            await self._asking.pause(seconds)
