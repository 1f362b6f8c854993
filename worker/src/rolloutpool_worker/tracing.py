"""RolloutTrace hears what an attempt does. Nobody listens unless a capability does (`OpenCapability.trace`)."""

from collections.abc import Collection, Sequence

from rolloutpool_common.protocol.result import RolloutResult, ToolTime, TurnSummary


class RolloutTrace:
    """Follows one attempt at one rollout. This class does nothing: it is for a rollout without a trace."""

    def traceparent(self, turn: int) -> str | None:
        """Returns the header of the calls of a turn; None without a trace."""
        return None

    def chat(self, turn: int, begun: float, *, summary: TurnSummary | None, error: BaseException | None = None) -> None:
        """Hears that a turn is over."""

    def tools(self, turn: int, begun: float, times: Sequence[ToolTime], known: Collection[str]) -> None:
        """Hears which tools a turn called."""

    def attempt(self, outcome: str) -> None:
        """Hears that the attempt is over."""

    def rollout(self, result: RolloutResult) -> None:
        """Hears that the rollout has ended."""


NO_TRACE = RolloutTrace()
