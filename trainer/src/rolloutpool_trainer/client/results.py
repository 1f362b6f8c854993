"""Reading a batch's results: each rollout once, in the order in which they ended, from any cursor on.

1. `call` asks for the page after the cursor; the pool holds the request until there is a result.
2. `take`, or `turn_page` and `is_new`, give what is new in the page. The pool delivers at least once, so a uid that
   came before is dropped.
3. Each result carries its cursor. Another process can go on after it, by passing that cursor.

`ResultStream` reads whole results, `SummaryStream` only their rows in the batch's table.
"""

import time
from collections.abc import Iterator

from rolloutpool_common.protocol.result import ResultPage, RolloutResult
from rolloutpool_common.protocol.rows import SummaryPage
from rolloutpool_trainer.client import calls, views


class FinishedRollout(RolloutResult):
    """A rollout's result with its place in the batch's stream of results."""

    cursor: str
    """Pass it to `results` to go on after this rollout."""


class _Reading:
    """One reading of a batch: its cursor, and the uids that were read."""

    def __init__(self, batch_id: str, cursor: str) -> None:
        self._batch_id = batch_id
        self._cursor = cursor
        self._seen: set[str] = set()
        self.complete = False
        """Whether all rollouts of the batch have ended and were read."""

    def turn_page(self, page: ResultPage | SummaryPage) -> None:
        """Notes where a page ends."""
        self._cursor = page.next_cursor
        self.complete = page.complete

    def is_new(self, uid: str) -> bool:
        """Tells whether a rollout was not read before, and notes that it is read now."""
        new = uid not in self._seen
        self._seen.add(uid)
        return new


class ResultStream(_Reading):
    """A reading of results, for at most `timeout` seconds from its beginning; None reads without limit."""

    def __init__(self, batch_id: str, cursor: str, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, or None; it is {timeout:g}")
        super().__init__(batch_id, cursor)
        self._timeout = timeout
        self._began_at: float | None = None

    def call(self) -> calls.Call[ResultPage]:
        """Makes the call for the next page, of which one is made however short the time is.

        Raises:
            TimeoutError: The time is over.
        """
        now = time.monotonic()
        wait, began_at = calls.LONG_POLL_SECONDS, self._began_at
        self._began_at = now if began_at is None else began_at
        if self._timeout is not None:
            left = self._began_at + self._timeout - now
            if left <= 0 and began_at is not None:
                raise TimeoutError(f"batch {self._batch_id} has not ended within {self._timeout:g} s")
            wait = min(wait, max(left, 0.0))
        return calls.results(self._batch_id, self._cursor, wait=wait)

    def take(self, page: ResultPage) -> Iterator[FinishedRollout]:
        """Yields the rollouts of a page that were not read before."""
        self.turn_page(page)
        for item in page.items:
            if self.is_new(item.result.uid):
                # Validated when the page was read; a second pass over its token lists would cost as much again.
                yield FinishedRollout.model_construct(**dict(item.result), cursor=item.cursor)


class SummaryStream(_Reading):
    """A reading of rows."""

    def call(self) -> calls.Call[SummaryPage]:
        """Makes the call for the next page."""
        return views.summaries(self._batch_id, self._cursor, wait=calls.LONG_POLL_SECONDS)
