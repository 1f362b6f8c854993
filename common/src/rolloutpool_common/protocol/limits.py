"""Limits of the batch API that several models share."""

MAX_ROLLOUTS = 10_000
"""Rollouts in one batch, with `n` expanded."""
