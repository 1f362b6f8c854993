"""The weights of a training run: the version that its trainer announces, its pauses, and rollouts that are too old.

- `stored`: what the store does for it. `claimed`: what a claim says of a run. `metrics`: what is measured of versions.
"""
