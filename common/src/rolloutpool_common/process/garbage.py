"""How a long-lived process of the pool collects cyclic garbage: rarely, and never what it was started with.

Python looks at all containers again and again, of which a warm worker has 135,000 that live as long as it does, most
of them transformers' own. Nearly everything that a rollout makes is freed by its reference count.
"""

import gc

__all__ = ["collect_rarely"]

THRESHOLD = 20_000
"""New containers; Python's default is 700. Higher costs memory: with 50,000 a rollout in flight took 9 kB more."""


def collect_rarely() -> None:
    """To be called once, when a process is warm."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD)
