"""A pool on this machine.

- `pool` starts Redis, API, workers and Flower, and ends them.
- `supervisor` watches those processes; `launch` finds out how to start them.
- `redis_server` runs the bundled Redis; `state` is the directory that outlives them; `ports` finds free ports.
"""
