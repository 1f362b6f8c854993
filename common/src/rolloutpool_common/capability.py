"""Says what the store does for a capability, and keeps of it in Redis. `composition` lists those that need it.

1. A batch uses a capability from its commit on, or never. The field `mark` of the batch's hash says so, where it keeps
   anything there.
2. What happens to a rollout in Redis happens in a script. A capability takes part in it by Lua of its own, in its
   folder `scripts` (`script_sources.py`). A batch that does not use it never runs a line of that.
3. A capability may keep a rollout in a *stage* after its conversation, before its result is delivered. The rollout's
   field `stage` then has the capability's name, its part `ungraded` the result, and its readers are shown `grading`.
   Who claims it next only goes on with the stage. While it is `held`, no worker gets it until it `leads`.
4. All else that the store does for it is a method here. Each does nothing unless the capability says otherwise.

Wire models and store import capabilities, so the modules with this object and with wire fields import neither, and no
library but pydantic. What needs more is in modules beside them. Around each call of a method an error of Redis becomes
the store's.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from rolloutpool_common.outcomes import Failure
    from rolloutpool_common.protocol.batch import BatchRequest
    from rolloutpool_common.protocol.waiting import Waiting


class StoreDoor(Protocol):
    """A capability's way to Redis: the kernel's `Connection`."""

    redis: Any

    def script(self, name: str, *args: Any) -> Awaitable[Any]:
        """Runs a script with these ARGV."""
        ...


class Encryption(Protocol):
    """Holds what keeps secrets: the kernel's `SecretStore`."""

    def encrypt(self, secret: str) -> str:
        """Encrypts a secret as it is stored."""
        ...


class Gauge(NamedTuple):
    """How many members a sorted set of Redis has now, as a metric."""

    name: str
    text: str
    key: str


class Counter(NamedTuple):
    """Fields `{prefix}:{value}` of the pool's totals, as a metric."""

    prefix: str
    name: str
    text: str
    label: str
    always: Sequence[str]
    """Values that are shown also while their count is 0."""


class Total(NamedTuple):
    """A field of the pool's totals, as a metric."""

    field: str
    name: str
    text: str


class PluginKind(NamedTuple):
    """Plug-ins of workers that rollouts name, as environments are (`protocol/offers.py`)."""

    kind: str
    """As names have it in front."""
    words: str
    """It in words."""
    option: str
    """The option of a rollout that names one: an object with a `name`."""
    announced: str
    """The field of a worker that lists them."""


class Ends(Protocol):
    """Ends what is overdue: the kernel's `Reconciliation`."""

    async def fail(self, batch_id: str, index: int, failure: "Failure") -> bool:
        """Ends a rollout with a failure; tells whether it had not ended before."""
        ...

    async def cancel(self, batch_id: str, waited_for: "Waiting") -> None:
        """Goes on with a batch whose cancellation has begun, and says in its results what its rollouts waited for."""
        ...


class StoredCapability:
    """A capability as the store sees it."""

    name: ClassVar[str]
    """That of its folder."""
    mark: ClassVar[str] = ""
    """The field of a batch's hash that says that the batch uses it. It is not shown, so it may hold secrets.

    A value that is the batch's own id says nothing. Empty for one that no batch asks for: then no script is any
    different for it, and `asked` is not called."""
    called: ClassVar[Sequence[tuple[str, str]]] = ()
    """Where a batch's request has a URL that the pool will call: part of the request, field of that."""
    secret: ClassVar[Sequence[tuple[str, str]]] = ()
    """Where it has a secret, likewise."""
    batch_parts: ClassVar[Sequence[str]] = ()
    """Parts of a batch's keys that are deleted with it."""
    rollout_parts: ClassVar[Sequence[str]] = ()
    """Parts of a rollout's keys, likewise."""
    sizes_groups: ClassVar[bool] = False
    """Whether it needs the sizes of a batch's groups."""
    said: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What a result has in one line to say of its end: by the word for it, the field with a `message`."""
    plugins: ClassVar[PluginKind | None] = None
    gauges: ClassVar[Sequence[Gauge]] = ()
    counters: ClassVar[Sequence[Counter]] = ()
    totals: ClassVar[Sequence[Total]] = ()
    counted: ClassVar[Sequence[str]] = ()
    """Fields of a result whose values are counted, with the batch and in the totals, as `{field}:{value}`."""

    def asked(self, batch: "BatchRequest | None", rollouts: Iterable[Mapping[str, Any]]) -> object | None:
        """Says what a batch asks of it; None where that is nothing, and the batch does not use it.

        `batch` is None for a batch of one that comes by another wire. `rollouts` are the options as they were sent:
        those that all share, then those of each rollout.
        """
        return None

    def kept(self, asked: Any, secrets: Encryption) -> Mapping[str, bytes | str | int]:
        """Makes fields of the batch's hash out of what the batch has asked: `mark`, unless the commit writes it."""
        return {self.mark: 1}

    def state(self, fields: Mapping[str, bytes]) -> dict[str, Any]:
        """Makes its fields of `BatchStatus` out of the batch's hash."""
        return {}

    def waiting(self, rollouts: int) -> "Waiting | None":
        """Says what so many rollouts of a batch wait for that are in its stage."""
        return None

    async def stopped(self, door: StoreDoor, run: str) -> "Waiting | None":
        """Says why a run, as the queue knows it, stands still; None where it goes on."""
        return None

    async def tidy(self, door: StoreDoor, ends: Ends) -> int:
        """Ends what is overdue; called where its `on_lead` has given the reconciler a chore of its name."""
        return 0

    def forget(self, pipe: Any, uid: str) -> None:
        """Adds to a pipeline what deletes all that is kept of a rollout outside of the rollout's own keys."""

    async def holds(self, door: StoreDoor, batch_id: str) -> bool:
        """Whether a batch that uses it, and is due to be deleted, is kept for some time more."""
        return False

    async def dead_letters(self, door: StoreDoor, limit: int) -> dict[str, list[str]]:
        """Reads its fields of `DeadLetters`, newest first."""
        return {}
