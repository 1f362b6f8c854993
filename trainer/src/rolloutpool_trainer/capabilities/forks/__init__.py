"""Forks in the client: to go on from a turn of a finished rollout."""
