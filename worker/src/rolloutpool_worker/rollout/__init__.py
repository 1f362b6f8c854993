"""One attempt at one rollout.

- `attempt` claims a rollout, runs it, and carries out what is decided about its end.
- `decision` is the table of what becomes of a rollout when an attempt has ended.
- `services` is what a rollout needs of the process that runs it.
- `admission` checks a result before it counts as completed.
"""
