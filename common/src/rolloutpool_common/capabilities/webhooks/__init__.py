"""Results are pushed to the trainer's webhook, besides being kept for reading.

- `wire`: the fields of requests and answers. `push`: the body of a push, and its signature.
- `stored`: what of it is in Redis, and what the store does for it. `pushes`: which results are due.
"""
