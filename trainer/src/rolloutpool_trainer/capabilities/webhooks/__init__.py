"""Webhooks for a trainer.

- `receiving` checks results that the pool pushed.
- `aio_batch` has results pushed again; `sync_batch` is generated from it. `calls` has the call.
- `shown` says what commands show.
"""
