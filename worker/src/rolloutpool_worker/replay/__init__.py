"""Running a finished rollout again from its result, without a model and without a tool, and comparing the two.

- `run` does it; `python -m rolloutpool_worker.replay` is its command (`__main__`).
- `differences` compares two results.
"""
