"""Says what engines keep in Redis: nothing. Attachments are stored with a result, by the kernel's script."""

from rolloutpool_common.capability import StoredCapability


class StoredEngines(StoredCapability):
    """Rollouts that inference engines sample, as the store sees them."""

    name = "engines"
