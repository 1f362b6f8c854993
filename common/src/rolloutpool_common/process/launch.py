"""A small script that becomes another program, which the kernel then ends when its parent ends, even by kill -9.

It is run as `launch.py PARENT_PID NICENESS PROGRAM ARGUMENT…` by a bare interpreter. A hook between fork and exec would
do the same, but it may deadlock in a process with threads. For the kernel the parent is the thread that forked, so that
thread has to live as long as the child. The script imports only what the interpreter has loaded anyway, because each
child of a pool waits for it.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def main() -> None:
    """Ties this process to its parent and becomes the program; it never returns."""
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
