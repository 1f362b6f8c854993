"""Limits of the batch API that several models share."""

__all__ = ["MAX_ROLLOUTS"]

MAX_ROLLOUTS = 10_000
"""Rollouts in one batch, with `n` expanded."""
