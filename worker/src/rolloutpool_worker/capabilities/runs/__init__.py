"""Pauses of runs, and weights that are too old: `gate` stands before each model call of a rollout of a run."""
