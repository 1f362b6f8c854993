"""Forks in a worker: `trunks` keeps what they have of their parents, and `opened` begins a rollout with it."""
