"""The Osmosis wire as the store sees it: a rollout of it is a batch of one, and its lease is the kernel's."""

from rolloutpool_common.capability import StoredCapability


class StoredOsmosis(StoredCapability):
    """Keeps nothing of its own in Redis."""

    name = "osmosis"
