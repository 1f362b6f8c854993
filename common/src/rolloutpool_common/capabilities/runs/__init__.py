"""The weights of a training run: the version that its trainer announces, its pauses, and rollouts that are too old.

- `wire`: the fields of requests and results, and what is said of a run. `claimed`: what a claim says of it.
- `stored`: what of it is in Redis, and what the store does for it. `steering`: who changes it, and reads it.
- `metrics`: what is measured of versions.
"""
