"""Forks as the store sees them: a batch that has its parent's result, which the kernel keeps with it."""

from rolloutpool_common.capability import StoredCapability


class StoredForks(StoredCapability):
    """Keeps nothing of its own in Redis."""

    name = "forks"
