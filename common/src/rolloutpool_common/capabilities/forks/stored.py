"""Says what the store does for forks, which keep nothing in Redis of their own."""

from collections.abc import Mapping
from typing import Any

from rolloutpool_common.capability import StoredCapability


class StoredForks(StoredCapability):
    """A rollout goes on from a turn of another one."""

    name = "forks"

    def from_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Says where a fork has left its parent."""
        return {"forked_from": options.get("fork")}
