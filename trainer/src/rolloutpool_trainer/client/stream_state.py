"""Says where a stream stands: which batches are open, what was read and yielded of them, and what is too old.

It asks the pool for nothing. `aio_stream` and `sync_stream` do that, and say how a stream works.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from rolloutpool_common.protocol.batch import RolloutItem
from rolloutpool_trainer.client.groups import GroupUse, SelectedGroup
from rolloutpool_trainer.client.lease_renewal import LeaseRenewal
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.client.stream_cursor import OpenBatch, StreamCursor
from rolloutpool_trainer.client.submission import Submission
from rolloutpool_trainer.client.tally import sampled_versions
from rolloutpool_trainer.errors import NothingKept

MOST_REFUSED = 30
"""After so many batches in a row of which `keep` has left nothing, it is taken for a fault: the pool would sample for
ever, and train nothing."""

LEASE_SECONDS = 3600.0
"""Without a request for so long, a batch of a stream ends. It is also how long a trainer may take to come back with its
cursor, or to train between two groups."""

_Items = Sequence[RolloutItem | Mapping[str, Any]]


class StreamBatch(Protocol):
    """What is known here of a batch, whichever client has submitted it."""

    batch_id: str
    renewal: LeaseRenewal

    @property
    def dropped(self) -> Counter[str]:
        """How many rollouts were left out, by reason."""
        ...


ClientT = TypeVar("ClientT")
BatchT = TypeVar("BatchT", bound=StreamBatch)
GroupT = TypeVar("GroupT", bound=SelectedGroup)


class StreamState(Generic[ClientT, BatchT, GroupT]):
    """What a stream knows, by one client or the other."""

    def __init__(
        self,
        client: ClientT,
        prompts: Iterable[_Items],
        *,
        in_flight: int = 2,
        max_staleness: int | None = 1,
        min_usable: int = 1,
        refill: int = 0,
        keep: Callable[[GroupT], bool] | None = None,
        cursor: str | None = None,
        lease_seconds: float | None = LEASE_SECONDS,
        **options: Any,
    ) -> None:
        """Makes a stream; nothing is submitted before it is iterated.

        Args:
            client: Of the pool.
            prompts: Batches, each a list of rollouts as `submit` takes them. After a restart it must give the same
                ones in the same order; those that were trained already are passed over.
            in_flight: How many batches are submitted and not yet read to their end.
            max_staleness: How many versions the weights in training may be ahead of the oldest that sampled a rollout;
                None takes any. Versions must end with a number. With `run`, the pool compares too; it reads versions
                that are decimal integers.
            min_usable: How many rollouts a group must have.
            refill: How often a group that can't be used may be sampled again: the failed siblings of one with too few
                rollouts, and all of one that `keep` refused.
            keep: Says whether a group shall be trained; what it refuses is counted in `dropped["refused"]`. Groups
                whose rewards are all equal teach GRPO nothing: `lambda group: len({r.reward for r in group.rollouts}) >
                1`. It may be asked again about a group after a restart.
            cursor: Where to go on: `stream.cursor` of the process before; `load_state_dict` does the same.
            lease_seconds: A batch is cancelled when nobody has asked for it for so long, 10 s to a week; an hour by
                default. It must be longer than your longest step, and than the time that a restart takes. None: the
                batches of a trainer that has died run to their end.
            **options: Keyword arguments of `submit`: `trainer`, `defaults`, `run`, `on_stale` …

        Raises:
            ValueError: `in_flight` is below 1, or the cursor is not one of a stream over these prompts.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight must be at least 1; it is {in_flight}")
        self.version: int | None = None
        """The number of the weights in training; `update` sets it, or you do, after each update. With a `run`, it is
        announced when the next group is asked for. None: nothing is stale here, and nothing is announced; the pool then
        compares with the newest version that it has seen."""
        self.dropped: Counter[str] = Counter()
        """How many rollouts were left out of the batches that were read to their end, by reason."""
        self._run: str | None = options.get("run")
        limited = self._run is not None and max_staleness is not None
        options["lease_seconds"] = lease_seconds
        self._renewal = LeaseRenewal(lease_seconds)
        self._client, self._options = client, options | ({"max_staleness": max_staleness} if limited else {})
        self._announced: int | None = None
        self._in_flight, self._max_staleness = in_flight, max_staleness
        self._rules: dict[str, Any] = {"min_usable": min_usable, "refill": refill, "drop": self._stale}
        self._keep_group, self._refused = keep, 0
        self._gathered: list[tuple[OpenBatch, GroupT]] = []
        """Groups of the next step; they do not count as trained yet."""
        self._state = StreamCursor.read(cursor)
        self._prompts = iter(prompts)
        self._kept: dict[int, _Items] = {}
        """By position, the prompts of the batches in flight, and of one whose submit failed."""
        self._batches: dict[int, BatchT] = {}
        self._read: set[int] = set()
        """Positions of batches that were read to their end, while some of their groups are only gathered."""
        self._latest: BatchT | None = None
        """Of the last group."""
        self._pass_over_trained()

    @property
    def cursor(self) -> str:
        """Returns where the stream stands, for the checkpoint: all groups that were yielded so far count as trained."""
        return self._state.write()

    def state_dict(self) -> dict[str, Any]:
        """Returns where the stream stands, with the version of the weights: plain values, to save beside the weights.

        All groups that were yielded so far count as trained, so call it when they are.
        """
        return {"cursor": self.cursor, "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another stream over the same prompts stood, for example that of a process which has died.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: This stream has begun already, or the state is not one of a stream over these prompts.
        """
        if self._state.taken:
            raise ValueError("this stream has begun already; load the state into a new one, before it is iterated")
        try:
            cursor, version = state["cursor"], state["version"]
        except (KeyError, TypeError) as error:
            raise ValueError("this is not the state of a RolloutStream") from error
        self._state = StreamCursor.read(cursor)
        self.version = version
        self._pass_over_trained()

    def _end(self, unread: Sequence[OpenBatch], batch: BatchT, kept_any: bool) -> None:
        """Takes the first of the unread batches as read to its end; `kept_any`: a group of it was yielded."""
        self._renewal.open.clear()
        self._renewal.open.update(dict.fromkeys(entry.batch_id for entry in unread[1:]))
        self._read.add(unread[0].position)
        self.dropped += batch.dropped
        self._let_go()
        self._count_refused(batch, kept_any)

    def _keep_new(self, known: set[str]) -> Callable[[GroupT], bool] | None:
        """Returns the caller's condition, which is asked about new groups only: the others are not to be refilled."""
        keep = self._keep_group
        return None if keep is None else lambda group: group.name in known or keep(group)

    def _count_refused(self, batch: BatchT, kept_any: bool) -> None:
        """Counts batches in a row of which `keep` has left nothing."""
        self._refused = 0 if kept_any else self._refused + bool(batch.dropped[GroupUse.REFUSED])
        if self._refused >= MOST_REFUSED:
            number, self._refused = self._refused, 0
            raise NothingKept(f"keep has refused every group of {number} batches in a row, so nothing is trained")

    def _hand_out(self, groups: int) -> list[GroupT]:
        """Takes the groups of a step, which count as trained from now on."""
        step, self._gathered = self._gathered[:groups], self._gathered[groups:]
        for entry, group in step:
            entry.yielded.append(group.name)
        self._let_go()
        return [group for _, group in step]

    def _let_go(self) -> None:
        """Forgets batches that were read to their end, and all of whose groups were yielded."""
        held = {entry.position for entry, _ in self._gathered}
        for entry in [one for one in self._state.open if one.position in self._read and one.position not in held]:
            self._state.open.remove(entry)
            self._read.discard(entry.position)
            del self._batches[entry.position], self._kept[entry.position]

    def _next(self) -> OpenBatch | None:
        """Returns the batch to be submitted now; None where enough are in flight, or the prompts are used up."""
        position = self._state.taken
        if len(self._state.open) - len(self._read) >= self._in_flight:
            return None
        # A submit that failed is tried again with the prompts that were taken for it.
        if position not in self._kept:
            items = next(self._prompts, None)
            if items is None:
                return None
            self._kept[position] = items
        return OpenBatch(position, "")

    def _keep(self, position: int, batch: BatchT) -> None:
        batch.renewal = self._renewal
        self._renewal.open[batch.batch_id] = None
        self._batches[position] = batch

    def _found(self, batch_id: str, submission: Submission) -> BatchT:
        """Names a batch that the process before has submitted."""
        raise NotImplementedError

    def _stale(self, rollout: FinishedRollout) -> str | None:
        versions = sampled_versions(rollout)
        if self.version is None or self._max_staleness is None or not versions:
            return None
        return "stale" if self.version - min(versions) > self._max_staleness else None

    def _pass_over_trained(self) -> None:
        """Goes to where the process before stood, and knows the prompts of what was in flight then."""
        in_flight = {entry.position: entry for entry in self._state.open}
        options = {name: value for name, value in self._options.items() if name != "group"}
        for position, items in enumerate(islice(self._prompts, self._state.taken)):
            if entry := in_flight.pop(position, None):
                self._kept[position] = items
                self._keep(position, self._found(entry.batch_id, Submission(items, options)))
        if in_flight:
            raise ValueError("the cursor is of a stream with more prompts; give the same prompts in the same order")
