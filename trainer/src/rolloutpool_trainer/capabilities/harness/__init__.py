"""Sessions of harnesses on the trainer's side: where a program finds its model, and the end of its session.

- `aio_batch`, `sync_batch`: methods of a batch. `calls`: the calls that they make.
- `commands`: `rolloutpool door`.
"""
