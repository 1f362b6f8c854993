"""How a long-lived process of the pool collects cyclic garbage: rarely, and never what it was started with.

Python looks at all containers again and again, of which a warm worker has a million that live as long as it does, most
of them transformers' own. Nearly everything that a rollout makes is freed by its reference count.
"""

import gc

__all__ = ["collect_rarely"]

THRESHOLDS = (50_000, 20, 20)
"""Python's are 700, 10, 10. A seventh of a worker's time at 100 rollouts in flight (docs/decisions/0009)."""


def collect_rarely() -> None:
    """To be called once, when a process is warm."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
