"""Says how a batch of a run is known."""

from types import MappingProxyType

from rolloutpool_common.capability import StoredCapability


class StoredRuns(StoredCapability):
    """Versions and pauses of runs, as the store sees them."""

    name = "runs"
    mark = "run"
    said = MappingProxyType({"stale": "stale_versions"})
