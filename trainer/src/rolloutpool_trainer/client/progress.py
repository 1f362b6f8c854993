"""The progress bar of a batch. It is shown on a terminal only, and on stderr, so that it never mixes with results."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rolloutpool_common.protocol.result import RolloutResult

from rolloutpool_common.outcomes import RolloutStatus


class BatchProgress:
    """Counts finished rollouts as they are read, and shows them if stderr is a terminal."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._ended = 0
        self._failed = 0
        self._tokens = 0
        self._progress = None
        if not shown:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("rollouts"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=console,
            )
            self._task = self._progress.add_task("rollouts", total=total, note="")

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add(self, result: "RolloutResult") -> None:
        """Counts one more rollout."""
        self._ended += 1
        self._failed += result.status is not RolloutStatus.COMPLETED
        self._tokens += result.response_tokens
        if self._progress is not None:
            failed = f", {self._failed} not completed" if self._failed else ""
            note = f"{self._tokens:,} tokens sampled{failed}"
            self._progress.update(self._task, completed=self._ended, note=note)
