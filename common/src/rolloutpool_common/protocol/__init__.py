"""The wire: one module per conversation, pydantic only.

`messages` and `sampling` are the vocabulary; `rollout` is protocol v1 between trainer and pool; `completions`
is the callback from the pool to the trainer; `batch`, `options`, `result` and `push` are the pool's own API.
"""
