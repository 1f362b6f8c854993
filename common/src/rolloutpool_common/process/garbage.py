"""Garbage collection in long-lived processes: rare, and without the objects that exist since the start.

Python looks at all containers again and again. A warm worker has 135,000 that live as long as the process, most of
them in transformers. Nearly everything that a rollout makes is freed by its reference count, without the collector.
"""

import gc

THRESHOLD = 20_000
"""New containers; Python's default is 700. Higher costs memory: with 50,000 a rollout in flight took 9 kB more."""


def collect_rarely() -> None:
    """Collect now, and rarely from now on; to be called once, when a process is warm."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD)
