"""Becomes another program that the kernel ends when its parent ends, even by kill -9.

Run as a script, `launch.py PARENT_PID NICENESS PROGRAM ARGUMENT…`, by a bare interpreter: a hook between fork and exec
would do the same, but may deadlock in a process with threads. "Parent" means the thread that forked: it has to stay.
Imports nothing beyond what the interpreter starts with, because each child of a pool waits for it.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def main() -> None:
    """Never returns."""
    parent, niceness, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent ended while this process started")
    os.nice(niceness)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"cannot run {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
