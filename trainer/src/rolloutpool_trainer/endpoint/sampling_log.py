"""The endpoint's log of what it sampled, independent of sessions.

Each finished sampling is one record. A turn that was sampled twice is there twice, even if its session was dropped in
between; with this log a test proves that recovery sampled no turn a second time. It is bounded: old records go first.
It begins anew with each process: what a process before has sampled is not in it.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

MAX_TOKENS = 4_000_000
RECORD_COST = 64
"""Tokens that each record counts in addition to its own, for the memory that the Python objects need."""


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """One sampling of one turn."""

    rollout_id: str
    uid: str | None
    """The pool's id of the rollout, from the Idempotency-Key; None if the caller sent none."""
    turn: int
    """From 1."""
    attempt: int | None
    token_ids: tuple[int, ...]


class SamplingLog:
    """Holds what was sampled, oldest first."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._records: deque[LoggedTurn] = deque()
        self._room = max_tokens

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[LoggedTurn]:
        return iter(tuple(self._records))

    def add(self, record: LoggedTurn) -> None:
        """Keeps a record; the oldest are dropped if there are too many tokens."""
        self._records.append(record)
        self._room -= len(record.token_ids) + RECORD_COST
        while self._room < 0 and len(self._records) > 1:
            self._room += len(self._records.popleft().token_ids) + RECORD_COST

    def of(self, rollout_id: str) -> list[LoggedTurn]:
        """Returns what was sampled for a rollout, oldest first."""
        return [record for record in self if record.rollout_id == rollout_id]

    def count(self, rollout_id: str, turn: int) -> int:
        """Counts how often a turn, from 1, was sampled; once is right."""
        return sum(record.turn == turn for record in self.of(rollout_id))

    def repeated(self) -> dict[tuple[str, int], int]:
        """Says how often turns were sampled more than once, by (the pool's uid or else the rollout id, turn)."""
        counts = Counter((record.uid or record.rollout_id, record.turn) for record in self)
        return {key: count for key, count in counts.items() if count > 1}
