"""Cyclic garbage is still collected, only more rarely."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from rolloutpool_common.process.garbage import THRESHOLD, collect_rarely

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

before = cycle()
collect_rarely()
assert before() is None, "what was garbage is frozen with the rest"
assert gc.get_freeze_count() > 1000
assert gc.get_threshold()[0] == THRESHOLD
refs = [cycle() for _ in range(3 * THRESHOLD)]
assert any(ref() is None for ref in refs), "nothing is collected any more"
"""


def test_a_warm_process_collects_rarely_but_it_collects() -> None:
    # In a process of its own, because the thresholds are the process's.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
