"""Counts the calls of Python and C functions in a process, in all threads, where PAIR_CALLS names a folder.

Python imports this module at its start where its folder is on PYTHONPATH. The number is in the file `<folder>/<pid>`, a
tenth of a second old at most. A process that counts is several times slower, so nothing else is measured meanwhile.
"""

import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

_COUNTED = frozenset({"call", "c_call"})
_calls: Counter[int] = Counter()


def _count(frame: FrameType, event: str, argument: Any) -> None:
    # By thread: a sum that two threads add to would lose some.
    if event in _COUNTED:
        _calls[threading.get_ident()] += 1


def _write(file: Path) -> None:
    sys.setprofile(None)
    while True:
        fresh = file.with_suffix(".new")
        fresh.write_text(str(sum(list(_calls.values()))))
        fresh.replace(file)
        time.sleep(0.1)


def _begin() -> None:
    file = Path(os.environ["PAIR_CALLS"]) / str(os.getpid())
    threading.Thread(target=_write, args=(file,), daemon=True).start()
    threading.setprofile(_count)
    sys.setprofile(_count)


if "PAIR_CALLS" in os.environ:
    # A forked process has none of its parent's threads.
    os.register_at_fork(after_in_child=_begin)
    _begin()
