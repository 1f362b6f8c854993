"""The agent loops.

- `tool_calls` is the built-in loop: sample, run the tools, repeat.
- `termination` decides after each turn whether the rollout is over.
- `context_limit` shortens a history that has become too long.
"""
