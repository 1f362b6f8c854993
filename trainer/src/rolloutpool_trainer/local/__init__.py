"""The local pool: Redis, API, workers and Flower as child processes on this machine.

- `pool` starts all of them and stops them; `LocalPool` is what users import.
- `redis_server` runs the pool's own Redis.
- `state` is the directory that outlives the processes; `ports` finds free ports.
"""
