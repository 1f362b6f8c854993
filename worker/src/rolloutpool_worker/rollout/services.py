"""Holds what a rollout needs of the process that runs it, and the register of the claims that run there.

`Services` is made once per process by `process.worker` and passed to every rollout. A test can make one without a
process: it then has neither a beat nor an announcement, and everything else works.

The register knows two things about claims, by the claim's token:

1. Which tokens this process may hold (`claiming`): from just before the claim script runs until the ticket is done.
   After a restart of Redis, a claim that Redis still lists under this worker and whose token is not in the register has
   already ended here; Redis only forgot the end.
2. Which claims have a running task (`running`): that task is cancelled when the API or another worker takes the rollout
   away, and it is asked to restore its claim when Redis has lost it.

The register goes by token and not by rollout because a worker that was declared dead by mistake can have one rollout
twice: its old claim, which can no longer write anything, and a new one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rolloutpool_common.process.obituaries import new_worker_id
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_common.store import Claim, SecretStore, Store, new_token
from rolloutpool_common.store.trials import MOST_COMPANY
from rolloutpool_worker.capability import OpenCapability
from rolloutpool_worker.composition import CAPABILITIES
from rolloutpool_worker.conversation.trainer_kinds import TrainerKinds
from rolloutpool_worker.drain import Drain
from rolloutpool_worker.environments import EnvironmentHost
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.deadlines import Deadlines
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.idempotence import IdempotentTrainers
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import AiohttpTransport
from rolloutpool_worker.policy.turn_client import HttpxTurns, TurnClient
from rolloutpool_worker.policy.waits import ProcessWaits
from rolloutpool_worker.rollout.staleness import PolicyVersions
from rolloutpool_worker.rollout.tokenizer_loads import TokenizerLoads
from rolloutpool_worker.settings import WorkerSettings
from rolloutpool_worker.tools import IsolatedTools, ToolHost, ToolLimits, ToolWatch
from rolloutpool_worker.tracing import NO_TRACE, RolloutTrace

Verify = Callable[[], Awaitable[None]]
"""Makes sure that Redis has the claim and its whole journal; raises `ClaimLost` when another worker has the rollout."""


BATCHES = 1024


@dataclass(frozen=True)
class WorkerIdentity:
    """Who this process is to the reconciler."""

    worker_id: str
    """New at each start of a process, so that a restarted worker is never taken for the one that died before it."""
    supervisor: str | None = None
    """The id of its parent, which has a lifeline and reports its end; None where no parent does."""

    @classmethod
    def new(cls) -> "WorkerIdentity":
        """Makes the identity of a process that was given none."""
        return cls(new_worker_id())


@dataclass(frozen=True)
class RunningClaim:
    """A claim whose rollout is running in this process."""

    task: asyncio.Task[object]
    """The task that runs the rollout; cancel it to stop the rollout."""
    verify: Verify


class ClaimRegister:
    """The claims of one process, by token."""

    def __init__(self) -> None:
        self._tokens: set[str] = set()
        self._running: dict[str, RunningClaim] = {}

    def __len__(self) -> int:
        """How many rollouts run here."""
        return len(self._running)

    def __contains__(self, token: str) -> bool:
        """Whether this process may hold the claim with this token."""
        return token in self._tokens

    @contextmanager
    def claiming(self, token: str | None = None) -> Iterator[str]:
        """Keeps a token in the register until the block ends."""
        token = token or new_token()
        self._tokens.add(token)
        try:
            yield token
        finally:
            self._tokens.discard(token)

    @contextmanager
    def running(self, claim: Claim, verify: Verify) -> Iterator[None]:
        """Registers the current task as the one that runs this claim, until the block ends."""
        task = asyncio.current_task()
        assert task is not None
        self._running[claim.token] = RunningClaim(task, verify)
        try:
            yield
        finally:
            del self._running[claim.token]

    def current(self) -> list[RunningClaim]:
        """The claims that run at this moment."""
        # A copy: rollouts begin and end while the caller awaits.
        return list(self._running.values())

    def cancel(self, token: str) -> None:
        """Stops the rollout that runs under this token; does nothing where there is none."""
        # It may have ended since Redis said that it must stop.
        if token in self._running:
            self._running[token].task.cancel()


class SeenBatches:
    """Of which batches this process has run a rollout; the last `BATCHES` of them."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, tuple[str, ...] | None], None] = OrderedDict()

    def is_first(self, batch_id: str, tools: Sequence[str] | None) -> bool:
        """Tells whether this is the first rollout of a batch with these tools; from now on it is not."""
        key = batch_id, None if tools is None else tuple(tools)
        if key in self._seen:
            return False
        self._seen[key] = None
        while len(self._seen) > BATCHES:
            self._seen.popitem(last=False)
        return True


def untraced(claim: Claim) -> RolloutTrace:
    """Follows no rollout."""
    return NO_TRACE


class Services:
    """What one process gives its rollouts: store, tokenizers, HTTP, breakers, drain, and the register of claims."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        role: WorkerRole = WorkerRole.SHARED,
        identity: WorkerIdentity | None = None,
        transport: AiohttpTransport | None = None,
    ) -> None:
        """Opens nothing yet: store and HTTP connect at first use, on the running event loop."""
        isolated = role is WorkerRole.ISOLATED
        slots = min(settings.worker_slots, MOST_COMPANY)
        self.settings = settings.model_copy(update={"worker_slots": slots}) if isolated else settings
        self.role = role
        self.identity = identity or WorkerIdentity.new()
        self.worker_id = self.identity.worker_id
        self.store = Store.open(
            settings.redis_url.get_secret_value(), max_connections=64, secrets=SecretStore.load(settings.secrets_file)
        )
        self.tokenizers = _tokenizers(settings)
        resolver, seconds = Resolver(settings.targets), settings.http_client_timeout
        deadlines = Deadlines()
        self.transport = transport or AiohttpTransport(resolver, timeout=seconds)
        self.turns: TurnClient = (
            HttpxTurns(self.transport)
            if transport is not None or settings.turn_client == "httpx"
            else Http1Client(resolver, timeout=seconds, deadlines=deadlines)
        )
        self.breakers = Breakers()
        self.trainers = IdempotentTrainers()
        self.waits = ProcessWaits(self.store.waits, deadlines=deadlines)
        self.versions = PolicyVersions()
        self.kinds = TrainerKinds(self.store.trainers)
        self.tool_host = _tool_host(settings)
        self.drain = Drain()
        self.tokenizer_loads = TokenizerLoads(self.tokenizers, self.store, self.drain)
        self.claims = ClaimRegister()
        self.batches = SeenBatches()
        self.refill = asyncio.Event()
        """Set when a claim has made room in the broker's window and outboxes wait; the process then publishes."""
        self.suspects_wait = asyncio.Event()
        """Set by each beat whose answer says that suspects wait for an isolated worker."""
        self.capabilities = {one.name: one.open(self) for one in CAPABILITIES}
        """Their parts of this process, in order."""
        self.policies = {kind: of for one in self.capabilities.values() for kind, of in one.policies.items()}
        """Who makes the policy of a rollout that no callback samples, by its protocol."""
        self.messages_policy = next(
            (one.messages_policy for one in self.capabilities.values() if one.messages_policy is not None), None
        )
        """Who makes the policy of a rollout without tokens."""
        self.trace_of = next((one.trace for one in self.capabilities.values() if one.trace is not None), untraced)
        self.environments = _environments(settings, self.capabilities.values())
        self._optional = [one for one in self.capabilities.values() if one.option or one.note]

    def chosen(self, claim: Claim) -> tuple[OpenCapability, ...]:
        """Returns the capabilities that a rollout uses, in order."""
        spec, notes = claim.spec, claim.notes
        return tuple(
            [
                one
                for one in self._optional
                if one.note in notes or (one.option is not None and getattr(spec, one.option) is not None)
            ]
        )

    def more_waiting(self, claim: Claim) -> None:
        """Asks the process to publish more tickets, where this claim made room and something waits in an outbox."""
        if claim.more_waiting:
            self.refill.set()

    async def close(self) -> None:
        """Closes environments and capabilities, ends processes of tools, disconnects."""
        await self.environments.close()
        await self.tool_host.isolated.close()
        for capability in reversed(self.capabilities.values()):
            await capability.close()
        await self.turns.aclose()
        await self.transport.aclose()
        await self.store.close()


def _tokenizers(settings: WorkerSettings) -> TokenizerCache:
    return TokenizerCache(
        settings.tokenizer_cache_size,
        allow=settings.allowed_tokenizers or None,
        # Who can call a pool that calls only loopback is on its machine, and can look for itself.
        paths=settings.tokenizers if settings.allowed_targets else None,
        trust_remote_code_for=settings.trust_remote_code_for if settings.tokenizer_trust_remote_code else (),
        render_seconds=settings.template_cpu_seconds,
    )


def _environments(settings: WorkerSettings, capabilities: Iterable[OpenCapability]) -> EnvironmentHost:
    named = [one.tool_servers for one in capabilities if one.tool_servers is not None]
    return EnvironmentHost(
        seconds=settings.tool_timeout,
        result_bytes=settings.max_tool_result_kb * 1024,
        tool_servers=named[0] if named else None,
    )


def _tool_host(settings: WorkerSettings) -> ToolHost:
    return ToolHost(
        ToolLimits(
            seconds=settings.tool_timeout,
            calls=settings.max_tool_calls,
            arguments=settings.max_tool_arguments_kb * 1024,
            result=settings.max_tool_result_kb * 1024,
        ),
        ToolWatch(blocked_seconds=settings.tool_blocked_seconds, memory_bytes=settings.tool_memory_growth_mb * 2**20),
        IsolatedTools(settings.isolated_tools),
    )
