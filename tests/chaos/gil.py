"""A plug-in that lets a worker be made to hold Python's lock for as long as a campaign wants, as native code may.

`ROLLOUTPOOL_PLUGINS=tests.chaos.gil` arms it. On `SIGNAL` the process calls C's `usleep` with the lock held: no thread
of Python runs meanwhile, neither the loop nor a beat nor a watchdog. A tool could do it too, but not at a chosen time.
"""

import ctypes
import os
import signal
from types import FrameType

SECONDS = 10.0
SIGNAL = signal.SIGRTMIN + 5
"""Used by nothing else. Its default would end the process, so it is sent only to workers that have announced
themselves: these have loaded their plug-ins."""


def _hold(_: int, __: FrameType | None) -> None:
    os.write(2, b"holds the lock of Python\n")
    # PyDLL, and not CDLL, keeps the lock during the call.
    ctypes.PyDLL(None).usleep(int(SECONDS * 1e6))


signal.signal(SIGNAL, _hold)
