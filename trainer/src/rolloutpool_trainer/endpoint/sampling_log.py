"""The endpoint's own log of what it sampled, independent of sessions.

One record per finished sampling, so a turn that was sampled twice is there twice, even if its session was dropped in
between: that is how a test proves that recovery charged no turn a second time. Bounded: the oldest records go.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["LoggedTurn", "SamplingLog"]

MAX_TOKENS = 4_000_000
RECORD_COST = 64
"""Tokens that a record counts as beside its own, for what Python needs to keep it."""


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """One sampling of one turn."""

    rollout_id: str
    uid: str | None
    """The pool's id of the rollout, from the Idempotency-Key; None for a caller that sends none."""
    turn: int
    attempt: int | None
    token_ids: tuple[int, ...]


class SamplingLog:
    """What was sampled, oldest first."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._records: deque[LoggedTurn] = deque()
        self._room = max_tokens

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[LoggedTurn]:
        return iter(tuple(self._records))

    def add(self, record: LoggedTurn) -> None:
        """Keeps a record, at the cost of the oldest."""
        self._records.append(record)
        self._room -= len(record.token_ids) + RECORD_COST
        while self._room < 0 and len(self._records) > 1:
            self._room += len(self._records.popleft().token_ids) + RECORD_COST

    def of(self, rollout_id: str) -> list[LoggedTurn]:
        """What was sampled for a rollout."""
        return [record for record in self if record.rollout_id == rollout_id]

    def count(self, rollout_id: str, turn: int) -> int:
        """How often a turn was sampled."""
        return sum(record.turn == turn for record in self.of(rollout_id))

    def repeated(self) -> dict[tuple[str, int], int]:
        """Turns that were sampled more than once, by (pool's uid or else rollout id, turn), with how often."""
        counts = Counter((record.uid or record.rollout_id, record.turn) for record in self)
        return {key: count for key, count in counts.items() if count > 1}
