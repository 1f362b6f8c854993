"""Says what a worker does for a capability.

1. `composition` has one `WorkerCapability` for each, in the order of the hooks. When a process starts, each is opened:
   an `OpenCapability` is its part of that process. They are closed in reverse order.
2. Which of them a rollout uses is chosen once: those whose `option` it sets, or whose `note` its claim has. A plain
   rollout has none, and no line of any capability runs for it.
3. Hooks are called in the order of the tuple. What a capability sees of a rollout is its `Talk`; a gate sees the
   conversation before which it stands.
4. Several may say what becomes of an attempt, and the table of `decision` does as well: the strictest answer holds.

A hook is here because a capability uses it. One that needs another moment of a rollout brings that hook along.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from rolloutpool_common.protocol.endpoint import EndpointProtocol
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim, Store
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.branch import Policy
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.drain import Drain, RolloutStop
from rolloutpool_worker.ending import Decision
from rolloutpool_worker.plugins import Registry
from rolloutpool_worker.policy.asking import Asking
from rolloutpool_worker.policy.transport import AiohttpTransport
from rolloutpool_worker.policy.waits import RolloutWaits
from rolloutpool_worker.recorded.script import Script
from rolloutpool_worker.tools import ToolHost
from rolloutpool_worker.tracing import RolloutTrace

if TYPE_CHECKING:
    from rolloutpool_worker.agents.tool_calls import Agent
    from rolloutpool_worker.environments import Environment
    from rolloutpool_worker.settings import WorkerSettings

T = TypeVar("T")


class WorkerDoor(Protocol):
    """Holds what a capability sees of a worker process; the kernel's `Services`."""

    settings: "WorkerSettings"
    worker_id: str
    store: Store
    transport: AiohttpTransport
    tool_host: ToolHost
    drain: Drain


class Talk(Protocol):
    """Holds what a capability sees of a rollout: at most 15 names, which a test lists."""

    claim: Claim
    store: Store

    def attachments(self, result: RolloutResult) -> bytes:
        """Returns what is kept beside a result of this attempt; empty where there is nothing."""
        ...

    def running(self, verify: Callable[[], Awaitable[None]]) -> AbstractContextManager[None]:
        """Says, until the block ends, that this task runs the rollout.

        It is cancelled when somebody takes the rollout away. `verify` is called when Redis was started again; it raises
        `ClaimLost` where another worker has the rollout.
        """
        ...

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Calls the store, again while it does not answer; raises `StoreError` when the process shuts down."""
        ...

    async def wait(self, waiting: Waiting) -> None:
        """Says to readers what the rollout waits for. Where the store does not take it, nothing happens."""
        ...

    def publish_soon(self) -> None:
        """Says that something may wait in an outbox."""
        ...

    def delivered(self, result: RolloutResult) -> None:
        """Says in log and metrics that another rollout has ended, which the capability has delivered."""
        ...


Ending = RolloutResult | BaseException
"""How an attempt has ended so far: with a result, or with what says where the rollout goes instead."""


class AttemptGate(Protocol):
    """Stands before the model calls of one attempt; what its methods raise ends the attempt."""

    def guard(self, talk: Conversation, journal: Journal) -> None:
        """Hears before which conversation it stands, and of its journal."""
        ...

    async def before_call(self, *, midway: bool = False, weights: str | None = None) -> bool:
        """Lets a call through, sooner or later (`policy.asking.BeforeCall`)."""
        ...

    async def at_end(self) -> None:
        """Looks once more, when the agent has come to an end."""
        ...

    def complete(self, result: RolloutResult) -> RolloutResult:
        """Says in a result what it has seen."""
        ...

    def close(self) -> None:
        """Forgets the attempt."""
        ...


class ProcessPart(Protocol):
    """Holds what a capability does in a shared worker process, beside the rollouts; on the process's event loop."""

    async def run(self) -> None:
        """Works until `stop` is called."""
        ...

    def stop(self) -> None:
        """Begins nothing new: the process drains."""
        ...

    def heard(self, notes: Mapping[str, Any]) -> None:
        """Hears what Redis has answered to a beat, by name."""
        ...


@dataclass(frozen=True)
class PolicyParts:
    """Holds what the policy of one attempt is made of."""

    claim: Claim
    spec: RolloutSpec
    """With its secrets sealed."""
    asking: Asking
    tokenizer: ChatTokenizer
    tools: list[dict[str, Any]]
    """The definitions of those that it is shown."""
    script: Script | None = None
    """Turns that are recorded; None where all are to be sampled."""
    begins: int = 1
    """The first turn that is the rollout's own; those before it were sampled for another one."""


class OpenCapability:
    """A capability's part of one process. Each hook does nothing unless the capability says otherwise."""

    option: ClassVar[str | None] = None
    """The option of a rollout that chooses it; None where options do not."""
    note: ClassVar[str | None] = None
    """The note of a claim (`Claim.notes`) that chooses it; None where notes do not."""
    part: ProcessPart | None = None
    """What it does beside the rollouts."""
    policies: Mapping[EndpointProtocol, Callable[[PolicyParts], Awaitable[Policy]]] = MappingProxyType({})
    """Who samples a rollout, by what stands at its URL."""
    messages_policy: Callable[[Asking, list[dict[str, Any]]], Policy] | None = None
    """Who samples a rollout of messages alone, which is shown these tools."""
    trace: Callable[[Claim], RolloutTrace] | None = None
    """Follows an attempt at any rollout; None where the operator wants no traces."""
    tool_servers: "Environment | None" = None
    """What protocol v1's `tool_server_url` leads to; None where this is not the capability's, or not wanted."""
    tasks: Mapping[str, Callable[[str], Coroutine[Any, Any, None]]] = MappingProxyType({})
    """What the API may ask of a worker, by the name of Celery's task; the argument is the id of what is stored."""

    def __init__(self, door: WorkerDoor) -> None:
        """Connects nowhere."""

    def agent(self) -> "Agent | None":
        """Returns what leads the conversations of rollouts that use it; None where the agent of their options does."""
        return None

    async def beginning(self, claim: Claim) -> Beginning | None:
        """Returns the turns of a rollout that are recorded; None where it samples all of them itself."""
        return None

    def gate(self, claim: Claim, stop: RolloutStop, waits: RolloutWaits) -> AttemptGate | None:
        """Makes what stands before the model calls of an attempt; None where nothing of it does.

        An attempt has one gate at most: of several capabilities' the first one's.
        """
        return None

    async def at_end(self, talk: Talk, ending: Ending | None) -> Ending | None:
        """Goes on with a rollout whose conversation has ended; None stands for one that was in a stage already.

        What is returned is the attempt's ending from here on; None says that this stage is another capability's.
        """
        return ending

    def decide(self, ending: Ending) -> Decision | None:
        """Says what becomes of the rollout; None leaves that to the others and to the table."""
        return None

    async def close(self) -> None:
        """Ends what it has started."""


class WorkerCapability:
    """A capability as a worker sees it."""

    name: ClassVar[str]
    plugins: ClassVar[Mapping[str, Registry[Any]]] = MappingProxyType({})
    """Plug-ins that it brings to workers, by their kind (`PluginKind` in `common`)."""
    opened: ClassVar[type[OpenCapability]]
    """Its part of a process."""
    tasks: ClassVar[Sequence[str]] = ()
    """The names of the tasks that its part of a process does."""

    def load(self, settings: "WorkerSettings") -> None:
        """Registers plug-ins that the operator's settings name, when a process starts; those of packages are there."""

    def open(self, door: WorkerDoor) -> OpenCapability:
        """Makes its part of a process."""
        return self.opened(door)

    def replayed(self, parts: PolicyParts) -> Policy | None:
        """Makes the policy of a rollout that is run again from its record; None where it was sampled by another."""
        return None

    def replayed_beginning(self, result: RolloutResult, script: Script) -> Beginning | None:
        """Says with which turns of another one a rollout that is run again began; None where all are its own."""
        return None
