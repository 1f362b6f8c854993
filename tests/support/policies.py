"""The policies of a worker, each before what it asks: a trainer, an engine, a chat endpoint.

Between the two stands a proxy, so that a test can say of any of them how the next calls fail (`Failures`).
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

from tests.support.chat_server import KEY, ChatServer
from tests.support.conversations import SomeBranch, claim_of
from tests.support.lying_proxy import LyingProxy, Manner, ProxyLine, lying_proxy
from tests.support.scripted_trainer import scripted_trainer
from tests.support.sglang_server import sglang_server
from tests.support.trainer_script import say
from tests.support.vllm_server import vllm_server

from rolloutpool_common.protocol.journal import PlannedTurn, TrainerKind
from rolloutpool_common.rendering import ChatTokenizer, TurnParser
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.engines.channel import EngineChannel
from rolloutpool_worker.capabilities.engines.engines import Engines
from rolloutpool_worker.capabilities.engines.policy import EnginePolicy
from rolloutpool_worker.capabilities.engines.tokens import EngineTokens
from rolloutpool_worker.capabilities.osmosis.channel import ChatChannel
from rolloutpool_worker.capabilities.osmosis.policy import ChatPolicy
from rolloutpool_worker.conversation.branch import Branch, Policy
from rolloutpool_worker.conversation.callback_policy import CallbackPolicy
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.history import History
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy.asking import Asking
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.callback import CallbackChannel
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.reply import Reply
from rolloutpool_worker.policy.resolver import Resolver

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Hello?"}]
MORE: list[dict[str, Any]] = [{"role": "user", "content": "And now?"}]
SAID = "Hello."
LARGEST = 100_000
"""Bytes of a reply."""
ATTEMPTS = 3
OF_ONE_ATTEMPT = ("request_id", "rid")
"""Names of a call, by which engines tell attempts apart."""

Fails = Callable[[ProxyLine], Any]


def answers(status: int, body: bytes = b"{}", **headers: str) -> Fails:
    """An answer in the place of the right one; in names of headers `_` stands for `-`."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return lambda line: line.write(head.encode() + body)


async def hangs_up(line: ProxyLine) -> None:
    """No answer, but the end of the connection."""
    line.close()


class Failures(Manner):
    """Fails the next calls in these ways, one after the other, and counts all calls for turns."""

    def __init__(self) -> None:
        self.next: list[Fails] = []
        self.calls = 0

    async def answer(self, line: ProxyLine, answer: bytes) -> None:
        """Gives the next failure, or the right answer."""
        self.calls += 1
        await (self.next.pop(0)(line) if self.next else line.write(answer))


class AskedPolicy:
    """The policy of one attempt, and the branch that it is asked for."""

    def __init__(self, asking: Asking, kind: str, tokenizer: ChatTokenizer) -> None:
        self.policy = _policy(asking, kind, tokenizer)
        self.branch = SomeBranch(History(ASK), self.policy.open_tokens())

    async def plan(self, turn: int, *, edited: bool = False) -> PlannedTurn:
        """Plans a turn, and has the branch know it."""
        self.branch.planned = await self.policy.plan(cast(Branch, self.branch), turn, edited=edited)
        return self.branch.planned

    async def ask(self, turn: int) -> tuple[Reply, AskedTurn]:
        """Asks a turn as it is planned."""
        return await self.policy.ask(cast(Branch, self.branch), turn)

    async def begin(self) -> None:
        """Has the first turn sampled, and more said after it."""
        reply, asked = await self.ask(1)
        history, tokens = self.branch.history, self.branch.tokens
        await tokens.ingest_reply(reply, history.messages, asked, train=True)
        history.append([reply.message])
        history.append(MORE)
        await tokens.append(history.since_last_turn(), history.through_last_turn(), 1)


class PolicyCase:
    """One kind of policy before what it asks."""

    def __init__(self, kind: str, url: str, tokenizer: ChatTokenizer, requests: Callable[[], list[Any]]) -> None:
        self.kind = kind
        self.failures = Failures()
        self.pauses: list[float] = []
        self._attempts = 0
        self.gated = 0
        """How often a call was let through."""
        self.error: Exception | None = None
        """What ends a pause."""
        self.closed: Exception | None = None
        """What the gate says in the place of letting a call through."""
        self.client = Http1Client(Resolver(Targets.loopback()), timeout=5)
        self._url, self._tokenizer, self._requests = url, tokenizer, requests

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the calls that came through, without what is another one in each attempt."""
        return [{k: v for k, v in body.items() if k not in OF_ONE_ATTEMPT} for body in self._requests()]

    def attempt(self, *, url: str | None = None, **options: Any) -> AskedPolicy:
        """A worker's attempt at the rollout."""
        if self.kind == "chat":
            options = {"messages_only": True, "tokenizer_name": "", "callback_api_key": KEY, **options}
        elif self.kind != "callback":
            options = {"protocol": self.kind, "sampling_params": {"max_tokens": 100}, **options}
        spec = claim_of(server_url=url or self._url, **options).spec
        limits, breakers = ReplyLimits(LARGEST), Breakers()
        self._attempts += 1
        asking = Asking(
            self.client,
            spec,
            "b-0",
            self._attempts,
            ATTEMPTS,
            limits,
            self._pause,
            breakers,
            before_call=self._before_call,
        )
        return AskedPolicy(asking, self.kind, self._tokenizer)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.error is not None:
            raise self.error

    async def _before_call(self, *, midway: bool = False, weights: str | None = None) -> bool:
        if self.closed is not None:
            raise self.closed
        self.gated += 1
        return False


def _policy(asking: Asking, kind: str, tokenizer: ChatTokenizer) -> Policy:
    spec = asking.spec
    match kind:
        case "callback":
            return CallbackPolicy(CallbackChannel(asking), lambda: TokenTrack(spec, tokenizer, [], TrainerKind.UNKNOWN))
        case "chat":
            return ChatPolicy(ChatChannel(asking))
    channel = EngineChannel(asking, Engines(), group=None, pause_seconds=60.0, stop_ids=tokenizer.stop_ids)
    return EnginePolicy(channel.sample, lambda: EngineTokens(spec, tokenizer, [], TurnParser.of(tokenizer, [])))


@contextlib.asynccontextmanager
async def policy_case(kind: str, tokenizer: ChatTokenizer, controller: ChatServer) -> AsyncIterator[PolicyCase]:
    """Serves what a policy of this kind asks, until the block ends; the chat endpoint is there already."""
    async with contextlib.AsyncExitStack() as stack:
        path = ""
        requests: Callable[[], list[Any]]
        if kind == "callback":
            trainer = await stack.enter_async_context(scripted_trainer(tokenizer, say(SAID)))
            target, requests = trainer.url, lambda: [exchange.document for exchange in trainer.exchanges]
        elif kind == "chat":
            target, path = controller.base, "/v1/rollouts/r"
            controller.asked.clear()
            requests = partial(controller.of, "r")
        else:
            serve = vllm_server if kind == "vllm" else sglang_server
            engine = await stack.enter_async_context(serve(tokenizer, SAID))
            target, requests = engine.url, lambda: [asked.document for asked in engine.asked]
        proxy: LyingProxy = await stack.enter_async_context(lying_proxy(target, Manner()))
        case = PolicyCase(kind, proxy.url + path, tokenizer, requests)
        proxy.manner = case.failures
        stack.push_async_callback(case.client.aclose)
        yield case
