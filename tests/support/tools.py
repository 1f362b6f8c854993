"""What tools need of their process, for tests without a worker; and isolated tools that do what no tool should do.

Isolated tools are imported by child processes, so they are in a module and not in a test.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.tools import Isolated, Tool, ToolContext, ToolFailed, ToolHost, ToolLimits
from rolloutpool_worker.tools.isolated import IsolatedTools
from rolloutpool_worker.tools.watch import ToolWatch

MEMORY_MB = 256
"""Of the tools here."""


def tool_host(*, seconds: float = 5.0, calls: int = 64, arguments: int = 2**20, result: int = 2**18) -> ToolHost:
    """A host of its own."""
    return ToolHost(
        ToolLimits(seconds=seconds, calls=calls, arguments=arguments, result=result),
        ToolWatch(blocked_seconds=1.0, memory_bytes=2**28),
        IsolatedTools(2),
    )


def isolated_tool(run: Any, *, seconds: float | None = None) -> Tool:
    """An isolated tool that is named as its function."""
    definition = ToolDefinition(function=ToolFunction(name=run.__name__, parameters={"type": "object"}))
    return Tool(definition, run, Isolated(memory_mb=MEMORY_MB, seconds=seconds))


async def segfault(_: ToolContext) -> object:
    """Reads where nothing is."""
    return ctypes.string_at(0)


async def abort(_: ToolContext) -> object:
    """Ends as a failed assertion in C does."""
    os.abort()


async def kill_itself(_: ToolContext) -> object:
    """Ends as the kernel ends a process when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return await asyncio.Event().wait()


async def leave(_: ToolContext, code: int) -> object:
    """Ends the process, past everything that Python does at the end."""
    os._exit(code)


async def spin(_: ToolContext) -> object:
    """Never ends, and holds the interpreter."""
    while True:
        pass


async def take(_: ToolContext, mb: int) -> object:
    """Takes so much memory, and gives it back."""
    return len(bytearray(mb * 2**20))


_kept: list[bytearray] = []


async def keep(_: ToolContext, mb: int) -> object:
    """Takes so much memory, and keeps it."""
    _kept.append(bytearray(mb * 2**20))
    return os.getpid()


async def say(_: ToolContext, times: int) -> object:
    """Says much."""
    return "x" * times


async def end_as(_: ToolContext, text: str) -> object:
    """Raises the error of this name."""
    raise {
        error.__name__: error
        for error in (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, RuntimeError)
    }[text]("secret detail")


async def refuse(_: ToolContext) -> object:
    """Refuses."""
    raise ToolFailed("the shop is closed")


async def whoami(context: ToolContext) -> object:
    """Tells for which call it runs, and where."""
    return f"{context.idempotency_key} {context.metadata} {os.getpid()}"


async def meet(_: ToolContext, folder: str, who: str) -> object:
    """Waits until two calls are there."""
    _meet(Path(folder), who)
    return os.getpid()


def _meet(folder: Path, who: str) -> None:
    (folder / who).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)


async def note(_: ToolContext, file: str) -> object:
    """Notes its process and one that it starts, and blocks for longer than any test lasts."""
    _note(Path(file))
    return None


def _note(file: Path) -> None:
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    file.write_text(f"{os.getpid()} {helper.pid}\n")
    time.sleep(600)


async def surroundings(_: ToolContext) -> object:
    """Tells how many threads it has and which files it has open."""
    return f"{threading.active_count()} {' '.join(open_files())}"


def open_files() -> set[str]:
    """What this process has open, standard streams left out; pipes and sockets have a number each."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        # The one that lists the folder is closed by now.
        with contextlib.suppress(FileNotFoundError):
            if int(number) > 2:
                found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


ENDINGS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (segfault, {}, "Error: segfault was ended by SIGSEGV"),
    (abort, {}, "Error: abort was ended by SIGABRT"),
    (kill_itself, {}, "Error: kill_itself was ended by SIGKILL"),
    (leave, {"code": 0}, "Error: leave ended its process with exit code 0"),
    (leave, {"code": 3}, "Error: leave ended its process with exit code 3"),
    (take, {"mb": 2000}, f"Error: take was ended: it used more than {MEMORY_MB} MB"),
    *(
        (end_as, {"text": name}, "Error: Tool execution failed")
        for name in ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit", "RuntimeError")
    ),
    (refuse, {}, "Error: the shop is closed"),
    (say, {"words": 1}, "Error: Invalid arguments for say: say() got an unexpected keyword argument 'words'"),
    (say, {"times": 20_000}, "x" * 10_000 + "… [cut: 10000 of 20000 characters shown]"),
    (say, {"times": 3}, "xxx"),
]
"""Tool, arguments, and what the policy reads, where 10,000 bytes of a result are shown."""
