"""The overview as the store sees it: it reads what others keep."""

from rolloutpool_common.capability import StoredCapability


class StoredOverview(StoredCapability):
    """Keeps nothing in Redis."""

    name = "overview"
