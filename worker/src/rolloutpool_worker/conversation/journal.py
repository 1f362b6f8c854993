"""One rollout's journal as its worker sees it: what was read of earlier attempts, then what this one writes.

Records are replayed in order, each once; only when none is left is anything new written. A record is durable before
`write` returns, at its index; what Redis lost of the earlier ones is sent again with it, and where Redis does not
answer, the write is held.
"""

from collections.abc import Callable
from typing import Any

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.store import Claim, ClaimLost, Store
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.drain import Drain

__all__ = ["Journal", "StaleJournal"]

Record = dict[str, Any]


class StaleJournal(RolloutPoolError):
    """The journal does not fit what the agent does now; was the agent changed between two attempts?"""


class Journal:
    """The records of one claimed rollout."""

    def __init__(
        self,
        store: Store,
        claim: Claim,
        records: list[Record],
        drain: Drain,
        *,
        after_write: Callable[[], None] | None = None,
    ) -> None:
        """A journal that continues `records`, which earlier attempts wrote.

        Args:
            store: Where the records are made durable.
            claim: The claim under which they are written.
            records: What was read from the store when the attempt began; may be empty.
            drain: Ends the wait for a store that does not answer.
            after_write: Is called after each record that this attempt has made durable.
        """
        self._after_write = after_write
        self._store = store
        self._drain = drain
        self._claim = claim
        self._records = records
        self._inherited = len(records)
        self._turns = sum(record["kind"] == "turn" for record in records)
        self._at = 0

    @property
    def beyond_inherited(self) -> bool:
        """Whether this attempt has written anything itself."""
        return self._at > self._inherited

    def replay(self, kind: str) -> Record | None:
        """The next inherited record, None behind the last; raises `StaleJournal` where it is of another kind."""
        if self._at >= len(self._records):
            return None
        record = self._records[self._at]
        if record["kind"] != kind:
            raise StaleJournal(f"record {self._at} is {record['kind']}, not {kind}: {StaleJournal.__doc__}")
        self._at += 1
        return record

    async def write(self, record: Record, *, turns: int) -> None:
        """Appends a record; raises `ClaimLost` when the rollout is no longer this worker's."""
        self._records.append(record)
        self._turns = turns
        self._at += 1
        await retry_store(
            self._drain,
            self._claim.uid,
            lambda: self._store.rollouts.journal(self._claim, self._records, turns=turns),
        )
        if self._after_write is not None:
            self._after_write()

    async def resend(self) -> None:
        """Makes sure that Redis has all records and the claim, and raises `ClaimLost` when another worker has it."""
        rollouts = self._store.rollouts
        if self._records:
            await rollouts.journal(self._claim, self._records, turns=self._turns)
        elif not await rollouts.restore(self._claim, [], turns=0):
            raise ClaimLost
