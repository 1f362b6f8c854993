"""Says what `submit` takes for the weights of a run."""

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.runs.wire import OnStale


class LimitedSubmit(TypedDict, total=False):
    """Keyword arguments of `submit`."""

    max_staleness: int | None
    """How many versions the run may be ahead of the oldest weights that sampled a rollout."""
    on_stale: "OnStale | str | None"
    """What happens to one that is older."""
