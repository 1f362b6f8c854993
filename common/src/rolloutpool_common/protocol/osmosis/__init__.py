"""Moved to `rolloutpool_common.capabilities.osmosis`; its names can be imported from here for a release."""
