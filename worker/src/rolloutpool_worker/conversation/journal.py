"""One rollout's journal as its worker sees it: what earlier attempts wrote, then what this one writes.

How a rollout goes on after its worker has died:

1. The next worker reads the records from Redis, checks them, and runs the agent from the start.
2. Each branch of the rollout has a place among the records (`place`), because branches may have been in flight at once.
   Each step (`sample`, `run_tools`, `append_messages`, `edit`) asks its branch's place for the next record of its kind.
   As long as there is one, the step does nothing but give the agent what the record says.
3. A record of another kind means that the agent does something else than the first time (`StaleJournal`).
4. After the branch's last record there is none. From here on steps really happen, and each is written with `write`.

    records read   [turn, observation, turn]
    agent          sample -> replayed, run_tools -> replayed, sample -> replayed, run_tools -> runs, and is written

A record is durable before `write` returns. Redis may lose its last second when it crashes; so `write` sends again what
is missing, from the records that are kept here. If Redis does not answer, `write` waits until it does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.journal import (
    EditRecord,
    EnvironmentRecord,
    JournalRecord,
    ObservationRecord,
    TurnRecord,
)
from rolloutpool_common.store import Claim, ClaimLost, Store, StoreError, StoreFull, StoreUnavailable
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.drain import Drain

Kind = TypeVar("Kind", EnvironmentRecord, TurnRecord, ObservationRecord, EditRecord)


class StaleJournal(RolloutPoolError):
    """The journal does not fit what the agent does now; was the agent changed between two attempts?"""


class RecordPlace:
    """Says where a branch is in the rollout's record."""

    def __init__(self, inherited: Sequence[tuple[int, JournalRecord]]) -> None:
        """`inherited` are the branch's records that earlier attempts wrote, each with its number."""
        self.left = deque(inherited)
        """The records of steps that the agent has not come to yet."""
        self.is_own = False
        """Whether this attempt has written anything of the branch itself."""
        self.entries = 0
        """How many of the branch's ledger's entries the records hold, up to where the agent is."""

    def replay(self, kind: type[Kind]) -> Kind:
        """Takes the next record that is left, for a step that an earlier attempt has made."""
        number, record = self.left[0]
        if not isinstance(record, kind):
            raise StaleJournal(
                f"record {number} is {type(record).__name__}, not {kind.__name__}: {StaleJournal.__doc__}"
            )
        self.left.popleft()
        # With the records, so that the next step's new ledger entries begin after these.
        self.entries += len(record.entries)
        return record


class Journal:
    """The records of one claimed rollout."""

    def __init__(
        self,
        store: Store | None,
        claim: Claim,
        records: Sequence[JournalRecord],
        drain: Drain,
        *,
        after_write: Callable[[], None] | None = None,
    ) -> None:
        """A journal that continues `records`, which earlier attempts wrote."""
        self._after_write = after_write
        self._store = store
        self._drain = drain
        self._claim = claim
        self.records = list(records)
        """All of them, in the order in which they were written."""
        self._inherited = len(records)
        self._turns = sum(isinstance(record, TurnRecord) for record in records)
        self._places: dict[int, RecordPlace] = {}
        self._keeps_back = False
        """Whether the last record waits for the one behind it."""
        self.called = claim.called

    @property
    def inherited(self) -> Sequence[JournalRecord]:
        """Returns what earlier attempts wrote."""
        return self.records[: self._inherited]

    def place(self, branch: int) -> RecordPlace:
        """Returns where a branch is, by its number."""
        found = self._places.get(branch)
        if found is None:
            mine = [(n, record) for n, record in enumerate(self.inherited) if record.branch == branch]
            found = self._places[branch] = RecordPlace(mine)
        return found

    async def write(self, record: JournalRecord, *, turns: int, later: bool = False, note: bytes = b"") -> Any:
        """Appends a record; returns what a capability answers to its note.

        `later` is for one that the next attempt makes again just as it is: it travels with the record behind it.
        """
        # Before Redis has it: if Redis is started again during the wait below, `resend` must send this record too.
        records, store, claim = self.records, self._store, self._claim
        records.append(record)
        self._turns = turns
        place = self._places.get(record.branch) or self.place(record.branch)
        place.entries += len(record.entries)
        if later:
            # The branch's present attempt is not seen in Redis yet, so what may be asked again is decided as before.
            self._keeps_back = True
            return None
        place.is_own = True
        noted = None
        if store is not None:
            try:
                two, self._keeps_back = self._keeps_back, False
                noted = await store.rollouts.journal(claim, records, turns=turns, note=note, two=two)
            except (StoreUnavailable, StoreFull) as error:
                noted = await retry_store(
                    self._drain,
                    claim.uid,
                    lambda: store.rollouts.journal(claim, records, turns=turns, note=note),
                    after=error,
                    waits=claim.waits,
                )
        # Only once the record is durable: it is a suspect's proof of progress, and clears it.
        if self._after_write is not None:
            self._after_write()
        return noted

    async def note_calling(self) -> None:
        """Notes durably that this attempt sends its first model call; does nothing before its later ones.

        If the worker dies before the note, nobody can have sampled for it, so the next attempt may ask without doubt.
        """
        if not self.called and (store := self._store) is not None:
            await retry_store(self._drain, self._claim.uid, lambda: store.model_calls.note(self._claim))
            self.called = True

    async def take_back_calling(self, *, certain: bool) -> None:
        """Notes durably that nothing was asked after all, where a call was noted."""
        if self.called and (store := self._store) is not None:
            await retry_store(
                self._drain,
                self._claim.uid,
                lambda: store.model_calls.take_back(self._claim, certain=certain),
            )
            self.called = False

    async def is_idempotent(self) -> bool:
        """Whether the rollout's trainer has promised in this batch that asking a turn again is safe."""
        if (store := self._store) is None:
            return False
        return await retry_store(self._drain, self._claim.uid, lambda: store.model_calls.is_idempotent(self._claim))

    async def note_idempotent(self) -> None:
        """Notes that promise with the batch. An error is ignored: the trainer is asked when it matters."""
        if self._store is not None:
            with suppress(StoreError):
                await self._store.model_calls.note_idempotent(self._claim)

    async def resend(self) -> None:
        """Makes sure that Redis has all records and the claim, and raises `ClaimLost` when another worker has it."""
        if self._store is None:
            return
        rollouts = self._store.rollouts
        if self.records:
            await rollouts.journal(self._claim, self.records, turns=self._turns)
        elif not await rollouts.restore(self._claim, [], turns=0):
            raise ClaimLost
