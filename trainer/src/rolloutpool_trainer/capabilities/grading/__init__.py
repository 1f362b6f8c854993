"""Grading for a trainer: ended rollouts are graded again, and figures are added to them and read.

- `aio` has the methods, and `sync` is generated from it. `calls` has the calls.
- `commands` has the commands, `documents` what these print with `--json`.
"""
