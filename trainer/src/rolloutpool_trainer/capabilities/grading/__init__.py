"""Grading for a trainer: ended rollouts are graded again.

- `aio_batch` asks for it; `sync_batch` is generated from it. `calls` has the calls, `commands` the command.
"""
