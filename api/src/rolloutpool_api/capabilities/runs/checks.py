"""Says what no model can see of the limit that a batch sets to the age of its weights."""

from collections.abc import Sequence
from typing import Any

from rolloutpool_api.checks import Check, ChosenEndpoints
from rolloutpool_api.fault_list import path
from rolloutpool_common.capabilities.runs.wire import OnStale
from rolloutpool_common.protocol.batch import BatchRequest, RolloutItem
from rolloutpool_common.protocol.endpoint import EndpointProtocol


def staleness_checks(batch: BatchRequest) -> Sequence[Check]:
    """Makes the check of a batch that sets a limit."""
    return () if batch.max_staleness is None else (StalenessCheck(batch),)


class StalenessCheck(Check):
    """`max_staleness` has a run, whose versions it is measured by; and what is to be restarted can be restarted."""

    def __init__(self, batch: BatchRequest) -> None:
        super().__init__()
        self._batch = batch
        self._endpoints = ChosenEndpoints(batch)

    def see_document(self, document: dict[str, Any]) -> None:
        """Demands a run."""
        if self._batch.run is None:
            self.faults.add("max_staleness", "needs `run`: versions are announced for a run")

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Refuses to restart rollouts at a callback, which would answer with the turns that it has kept."""
        if self._batch.on_stale is not OnStale.RESTART or item is None:
            return
        if self._endpoints.of(item, "protocol") is EndpointProtocol.CALLBACK:
            self.faults.add(
                path("rollouts", index),
                "on_stale `restart` needs an engine: the callback keeps the turns of a rollout; use `drop` or `finish`",
            )
