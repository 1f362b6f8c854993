"""CallbackChannel: how a rollout asks its trainer for a turn (protocol v1's callback).

Messages go out, `prompt_token_ids` and `token_ids` come back. One turn takes these steps:

1. `body` writes the request: exactly nine keys in their order, then the extra sampling parameters. Its digest travels
   in a header, so that a trainer can tell a repeated request from a different one for the same turn.
2. `sample` posts it (`endpoint`). A call that failed is repeated only where its error says that this is safe, after a
   pause that doubles, or the one that the trainer asked for.
3. The reply is parsed and checked (`reply`), in a thread where it is large.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

import orjson

from rolloutpool_common.errors import TrainerProtocolError, TrainerStatusError, TrainerUnreachable
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.process.metrics import IN_PAUSE
from rolloutpool_common.protocol.completions import CompletionsRequest
from rolloutpool_common.protocol.trace import HEADER_TRACEPARENT
from rolloutpool_common.protocol.turn_headers import (
    HEADER_ATTEMPT,
    HEADER_DIGEST,
    HEADER_ECHO_DIGEST,
    HEADER_ECHO_PREFIX,
    HEADER_EDITED,
    HEADER_FORKED_FROM,
    HEADER_IDEMPOTENCY,
    Echo,
    TurnKey,
    branch_name,
)
from rolloutpool_worker.policy.asking import Asking, ungated
from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.endpoint import TrainerEndpoint
from rolloutpool_worker.policy.idempotence import IdempotentTrainers
from rolloutpool_worker.policy.repeated_echo import EchoText
from rolloutpool_worker.policy.reply import Reply, parse_reply
from rolloutpool_worker.policy.turn_client import TurnAnswer
from rolloutpool_worker.tracing import NO_TRACE

_log = logging.getLogger(__name__)

OFF_LOOP_BYTES = 256 * 1024
"""Parsing a larger reply would hold up the event loop for milliseconds, so a thread does it."""
BACKOFF = Backoff(first_s=0.5, longest_s=30.0)
"""Between two calls of one turn; the trainer's own `Retry-After` comes first, up to the same limit."""


@dataclass
class TurnCall:
    """One turn to be sampled."""

    turn: int
    """Counted from 1."""
    body: TurnBody
    mask: int = 1
    """Which mask is tried, from 1: the trainer has refused the turn with those before."""
    edited: bool = False
    """Whether the history was edited since the last turn."""
    echo: Echo | None = None
    known: EchoText | None = None
    """Text of prompt ids that the ledger has; the reply is read from there on."""
    in_place_of: TurnKey | None = None
    """The turn of another rollout in whose place this one is sampled, behind recorded ones."""
    branch: int = 0
    """Of the rollout."""


class CallbackChannel:
    """Asks the trainer of one rollout for its turns."""

    path = "/v1/chat/completions"
    """Below the trainer's URL."""

    def __init__(self, asking: Asking, trainers: IdempotentTrainers | None = None) -> None:
        """Prepares the parts of a request that are equal in every turn."""
        spec = asking.spec
        self._asking = asking
        self._trainers = trainers or IdempotentTrainers()
        self._endpoint = TrainerEndpoint(
            asking.client, asking.breakers, spec, reply_limits=asking.reply_limits, trainers=self._trainers
        )
        self._before_call = asking.before_call
        self._waits = asking.waits
        self._trace = asking.trace
        self._spec = spec
        self._uid = asking.uid
        self._attempts = 1 if spec.v1 else asking.attempts
        self._constant_headers = {
            "Content-Type": "application/json",
            HEADER_ATTEMPT: str(asking.attempt),
            **self._authorisation(),
        }
        sampling = spec.sampling_params
        turn = CompletionsRequest(
            messages=[],
            rollout_id=spec.rollout_id,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop=sampling.stop,
            logprobs=sampling.logprobs,
        )
        # A turn's messages are written before it, and the mask after it.
        self._frame = b'],%b,"response_mask":' % orjson.dumps(turn.frame())[1:-1]
        extra = orjson.dumps(sampling.extra())[1:-1]
        self._extra = b"," + extra if extra else b""

    def body(self, messages: MessageBytes, zeros: int, prompt_ids: list[int] | None = None) -> TurnBody:
        """Writes a request: the protocol's nine keys, then the extra sampling parameters."""
        # As orjson writes it, in a hundredth of the time: a long tool result has 80,000.
        mask = b"[%b]" % (b"0," * zeros)[:-1] if zeros else b"null"
        ids = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        return messages.body(b"".join((self._frame, mask, self._extra, ids, b"}")))

    async def sample(self, call: TurnCall) -> Reply:
        """Has the policy sample one turn."""
        where = f"turn {call.turn} at {self._spec.server_url}"
        answer = await self._post(call, where)
        return await self._read(answer, where, call.known)

    async def _read(self, answer: TurnAnswer, where: str, known: EchoText | None) -> Reply:
        parse = partial(parse_reply, answer.data, answer.headers, where, needs_prompt_ids=self._spec.v1, known=known)
        return await asyncio.to_thread(parse) if len(answer.data) > OFF_LOOP_BYTES else parse()

    @property
    def may_repeat(self) -> bool:
        """Whether the same turn may be asked again, as far as options and earlier answers tell."""
        return self._endpoint.may_repeat

    async def ask_idempotent(self) -> bool:
        """Asks the trainer itself whether the same turn may be asked again; raises where nothing listens there."""
        return await self._endpoint.ask_idempotent(self._authorisation())

    def is_news(self, batch_id: str) -> bool:
        """Whether the trainer's promise that it is idempotent is to be noted with this batch now."""
        return self._trainers.is_news(batch_id, self._spec.server_url)

    async def _post(self, call: TurnCall, where: str) -> TurnAnswer:
        # The same for each try: key and digest show a trainer that has sampled the turn that this is a repetition.
        headers, waits = self._headers(call), self._waits
        # Those that failed before a drain count, but each attempt may make one.
        failures = 0 if waits is None or not waits.tried else min(waits.tried, self._attempts - 1)
        while True:
            if self._before_call is not ungated:
                await self._before_call()
            answer: TurnAnswer | None = None
            slow = None if waits is None else waits.asks(where)
            try:
                answer = await self._endpoint.ask("POST", self.path, call.body.data, headers, where)
            except (TrainerUnreachable, TrainerStatusError, TrainerProtocolError) as error:
                failed, failures = error, failures + 1
            finally:
                if slow is not None and (reported := slow.end()) is not None:
                    await reported
            if waits is not None and (answer is not None or failures == self._attempts or not failed.retryable):
                waits.tried = 0
            if answer is not None:
                if waits is not None and waits.now is not None:
                    await waits.worked()
                return answer
            if failures == self._attempts or not failed.retryable:
                raise failed
            await self._wait_after(failed, failures)

    async def _wait_after(self, error: TrainerUnreachable | TrainerStatusError | TrainerProtocolError, n: int) -> None:
        """Waits after the nth call of a turn that has failed."""
        asked = error.retry_after if isinstance(error, TrainerStatusError) else None
        # Bounded also where the trainer names the time: the rollout holds its slot meanwhile.
        wait = BACKOFF.delay_s(n) if asked is None else min(asked, BACKOFF.longest_s)
        log_event(_log, logging.DEBUG, "model call failed", error=error.message, again_in_s=round(wait, 1))
        if self._waits is not None:
            self._waits.tried = n
            await self._waits.failed(error, n, wait)
        # A border: no call is in flight here, so a drain may end the turn.
        with IN_PAUSE:
            await self._asking.pause(wait)

    def _headers(self, call: TurnCall) -> dict[str, str]:
        uid = branch_name(self._uid, call.branch) if call.branch else self._uid
        # The key is written as `TurnKey` writes it: to make one for each turn costs calls for nothing.
        headers = {
            **self._constant_headers,
            HEADER_IDEMPOTENCY: f"{uid}/{call.turn}" if call.mask == 1 else str(TurnKey(uid, call.turn, call.mask)),
            HEADER_DIGEST: call.body.digest,
        }
        if call.echo is not None:
            headers[HEADER_ECHO_PREFIX] = str(call.echo.prefix)
            headers[HEADER_ECHO_DIGEST] = call.echo.digest
        if call.edited:
            headers[HEADER_EDITED] = "1"
        if call.in_place_of is not None:
            headers[HEADER_FORKED_FROM] = str(call.in_place_of)
        if self._trace is not NO_TRACE and (parent := self._trace.traceparent(call.turn)) is not None:
            headers[HEADER_TRACEPARENT] = parent
        return headers

    def _authorisation(self) -> dict[str, str]:
        key = self._spec.callback_api_key
        return {"Authorization": f"Bearer {key}"} if key else {}
