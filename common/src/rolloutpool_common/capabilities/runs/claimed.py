"""What a claim says of a rollout's run, by `_runs.lua`."""

from typing import NamedTuple, Self

from rolloutpool_common.capabilities.runs.wire import OnStale
from rolloutpool_common.store.claims import Claim


class ClaimedRun(NamedTuple):
    """The run of a claimed rollout, and how old its weights may be."""

    run: str
    """As `run_key` names it."""
    max_staleness: int | None
    on_stale: OnStale
    restarts: int
    """How often the rollout has begun again because it was stale."""

    @classmethod
    def of(cls, claim: Claim) -> Self:
        """Reads the notes of a claim that has a run."""
        notes = claim.notes
        return cls(
            run=notes["run"].decode(),
            max_staleness=int(notes["max_staleness"]) if notes["max_staleness"] else None,
            on_stale=OnStale(notes["on_stale"].decode() or OnStale.DROP),
            restarts=notes["restarts"],
        )
