"""Grading for a trainer: ended rollouts are graded again, and figures are added to them and read.

- `aio_batch`, `aio_group` and `aio_client` have the methods; `sync_…` are generated from them. `calls` has the calls.
- `commands` has the commands, `documents` what these print with `--json`.
"""
