"""The inside of an isolated tool's child process; `isolated.py` starts it and talks to it.

1. It becomes the leader of a process group, so that what a tool starts ends with it, and a Ctrl-C does not reach it.
2. The kernel ends it when its worker ends, even by kill -9.
3. It has a memory limit, lower priority than its worker, and is the kernel's first choice where memory runs out.
4. It imports the tool's module and says that it is ready, or why not.
5. It answers calls, one at a time, until its pipe is closed.

A tool that needs more memory than the limit gets a `MemoryError`. The child then ends with `EXIT_MEMORY`, because
nobody knows what the tool has left behind. After a call that has kept much memory the child says that it is `worn`, and
the worker starts another one.
"""

import asyncio
import ctypes
import functools
import importlib
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rolloutpool_worker.plugin_errors import PluginError
from rolloutpool_worker.tools.base import ToolContext, answer_call
from rolloutpool_worker.tools.limits import ShownResult, cut_result

EXIT_MEMORY = 113
"""The child's exit code after a `MemoryError`; a tool may end its process with any other."""
NICENESS = 5
"""How much a child yields to its worker: on one core the worker gets three quarters beside a tool that spins. With
more, tools would run into their time limits wherever the cores are busy."""
NOTHING = ShownResult("", cut=False)
"""The result of a call that has raised an error."""
PR_SET_PDEATHSIG = 1
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Libraries for numbers start a thread per core, with buffers that count as memory; one call gets one thread."""


@dataclass(frozen=True)
class ToolAddress:
    """Says where the child finds the tool's function: functions that were decorated cannot be pickled."""

    module: str
    name: str
    """The name in the module, with dots where it is inside a class."""

    def load(self) -> Callable[..., Awaitable[object]]:
        """Imports the module; returns the function."""
        found: Any = functools.reduce(getattr, self.name.split("."), importlib.import_module(self.module))
        # What a decorator has made of the function: a tool, or a grader.
        run: Callable[..., Awaitable[object]] = getattr(found, "run", found)
        return run


@dataclass(frozen=True)
class ToolCallRequest:
    """One call of the tool."""

    tool: str
    context: ToolContext
    arguments: Any
    result_bytes: int
    """How much of the result is sent back at the most."""


@dataclass(frozen=True)
class ToolReply:
    """Holds what became of a call, or of the start."""

    text: str
    """What the policy reads; after a start the reason why the tool cannot be used, or nothing."""
    raised: PluginError | None = None
    """The error that the tool raised."""
    cut: bool = False
    """Whether the text is only the beginning of the result."""
    worn: bool = False
    """Whether the child should not be used again."""


def serve_calls(pipe: Connection, source: ToolAddress, memory_mb: int, parent: int) -> None:
    """Answers calls until the pipe is closed."""
    _settle(memory_mb, parent)
    try:
        run = source.load()
    except MemoryError:
        os._exit(EXIT_MEMORY)
    except BaseException as error:
        return pipe.send(ToolReply(f"{source.module} cannot be imported: {error}"[:1000]))
    pipe.send(ToolReply(""))
    fresh = _data_bytes()
    while True:
        try:
            request: ToolCallRequest = pipe.recv()
        except EOFError:
            return None
        try:
            shown, raised = asyncio.run(_answer(request, run))
        except MemoryError:
            os._exit(EXIT_MEMORY)
        # `asyncio.run` raises these two past the coroutine, whatever it catches.
        except (SystemExit, KeyboardInterrupt) as error:
            shown, raised = NOTHING, PluginError.of(error)
        kept = _data_bytes() - fresh
        pipe.send(ToolReply(shown.text, raised, cut=shown.cut, worn=kept > (memory_mb * 2**20 - fresh) / 2))


async def _answer(
    request: ToolCallRequest, run: Callable[..., Awaitable[object]]
) -> tuple[ShownResult, PluginError | None]:
    try:
        text = await answer_call(request.tool, run, request.context, request.arguments)
        return cut_result(text, request.result_bytes), None
    except (MemoryError, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        return NOTHING, PluginError.of(error)


def _settle(memory_mb: int, parent: int) -> None:
    os.setsid()
    # A SIGTERM for all processes of a container is the worker's affair: it drains, and calls may end.
    # Handlers instead of SIG_IGN, which programs that the tool starts would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the worker ended while this process started")
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(NICENESS)
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
    # RLIMIT_DATA counts what was allocated; RLIMIT_AS would count the address space that libraries reserve too.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    # A dump of gigabytes for each crash would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _data_bytes() -> int:
    """Returns what counts against the limit now; 0 where the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    return 0
