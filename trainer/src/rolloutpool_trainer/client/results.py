"""Reading a batch's results: each rollout once, in the order in which they ended, from any cursor on.

The pool delivers at least once; what comes again is dropped here by uid. The cursor of a finished rollout is
where reading goes on after it, in this process or in the next.
"""

from collections.abc import Iterator

from rolloutpool_common.protocol.result import ResultPage, RolloutResult
from rolloutpool_trainer.client import calls

__all__ = ["FinishedRollout", "ResultStream"]


class FinishedRollout(RolloutResult):
    """A rollout's result with its place in the batch's stream of results."""

    cursor: str
    """Pass it to `results` to read on after this one."""


class ResultStream:
    """Where one reading of a batch stands."""

    def __init__(self, batch_id: str, cursor: str) -> None:
        self._batch_id = batch_id
        self._cursor = cursor
        self._seen: set[str] = set()
        self.complete = False
        """All rollouts of the batch have ended, and all of them were read."""

    def call(self) -> calls.Call[ResultPage]:
        """The request for what comes next."""
        return calls.results(self._batch_id, self._cursor, wait=calls.LONG_POLL_SECONDS)

    def take(self, page: ResultPage) -> Iterator[FinishedRollout]:
        """What is new in the answer to `call`."""
        self._cursor = page.next_cursor
        self.complete = page.complete
        for item in page.items:
            if item.result.uid not in self._seen:
                self._seen.add(item.result.uid)
                # Validated when the page was read; a second pass over its token lists would cost as much again.
                yield FinishedRollout.model_construct(**dict(item.result), cursor=item.cursor)
