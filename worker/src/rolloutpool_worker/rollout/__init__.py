"""One attempt at one rollout.

- `attempt` claims a rollout, runs it, and decides what becomes of it.
- `services` is what a rollout needs of the process that runs it.
- `admission` checks a result before it counts as completed.
"""
