"""Runtimes: where a runner starts programs. `ProcessRuntime` starts them on the runner's own machine.

A program runs in a *place* of its own (`places`). It gets HOME, PATH, LANG, TMPDIR, the variables of its preset and
those that the operator passes on, and nothing else of the runner's environment.

With bubblewrap a program sees the machine read-only, its own home, a `/tmp` and a `/proc` of its own, and none of the
directories that the operator hides. It has no network and reaches the door alone (`passage`), unless the operator
shares the machine's. Without bubblewrap it may do all that the runner may.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_worker.capabilities.harness.passage import Passage, opened_passage
from rolloutpool_worker.capabilities.harness.places import HOMES, delete_left_places, made_place
from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings

TAIL = 2000
"""Bytes of what a program has printed."""
LAST_WORDS_SECONDS = 1.0
"""How long after its end a program's output is read, if somebody else still holds it."""
LOOK_SECONDS = 0.25
"""Between two counts of a program's processes. A fork bomb makes some thousands meanwhile."""
_READING = threading.Lock()


class ProgramMissing(RolloutPoolError):
    """The runner's machine has no such program."""


class TooManyProcesses(RolloutPoolError):
    """The program had more processes than ROLLOUTPOOL_RUNNER_PIDS allows."""


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    code: int
    """Its exit code; negative where a signal ended it."""
    output: str
    """The end of what it has printed. It may hold prompts, so it goes into no log."""


class Runtime(Protocol):
    """Somewhere to start programs."""

    async def run(self, preset: Preset, values: Mapping[str, str]) -> ProgramEnd:
        """Runs a program in a fresh place until it ends. When this is cancelled, everything of the place is ended."""
        ...

    async def clear(self) -> int:
        """Ends and deletes what runners of this machine have left that were killed; returns how many places."""
        ...


class ProcessRuntime:
    """Processes of the runner's machine."""

    def __init__(self, settings: RunnerSettings) -> None:
        """Raises `ProgramMissing` where bubblewrap is to be used, and is not there."""
        self._settings = settings
        self._bubblewrap = shutil.which("bwrap")
        if settings.runner_process == "bubblewrap" and self._bubblewrap is None:
            raise ProgramMissing(
                "ROLLOUTPOOL_RUNNER_PROCESS=bubblewrap, and there is no bwrap (Debian: apt-get install bubblewrap)"
            )
        if settings.runner_process == "bubblewrap" and settings.runner_network not in (None, "host"):
            raise ProgramMissing(
                "ROLLOUTPOOL_RUNNER_NETWORK: with bubblewrap it is `host`, or empty for the door alone"
            )
        self._has_passage = settings.runner_process == "bubblewrap" and settings.runner_network is None

    async def run(self, preset: Preset, values: Mapping[str, str]) -> ProgramEnd:
        """See `Runtime.run`."""
        if preset.image is not None:
            raise ProgramMissing("its program wants the image of a container, and this runner has none")
        door = self._settings.door_url
        async with made_place(HOMES, self._settings.runner_places) as place, AsyncExitStack() as stack:
            passage = await stack.enter_async_context(opened_passage(door)) if self._has_passage else None
            if passage is not None:
                values = passage.moved(values, door)
            filled = preset.filled({**values, "home": str(place)})
            await asyncio.to_thread(lay_out, place, filled.files)
            return await self._run(place, filled, passage)

    async def clear(self) -> int:
        """See `Runtime.clear`. A program has ended with its runner; what it has started may run on."""
        return await delete_left_places(self._settings)

    async def _run(self, place: Path, preset: Preset, passage: Passage | None) -> ProgramEnd:
        program = shutil.which(preset.command[0])
        if program is None:
            raise ProgramMissing(f"this runner has no program {preset.command[0][:64]!r} in its PATH")
        own = variables(self._settings, str(place), preset.env)
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **own}
        wrapped = self._wrapped(place, [program, *preset.command[1:]], passage)
        return await run_command(wrapped, env, place / "work", most_processes=self._settings.runner_pids)

    def _wrapped(self, place: Path, command: list[str], passage: Passage | None) -> list[str]:
        settings = self._settings
        # Not the address space (--as): Node reserves more of that than it uses, and died at its first request.
        memory, file = settings.runner_memory_mb * 2**20, settings.runner_file_mb * 2**20
        limits = [f"--data={memory}", f"--fsize={file}", "--core=0"]
        limited = (
            [shutil.which("prlimit") or "prlimit", *limits, "--", *command] if sys.platform == "linux" else command
        )
        if settings.runner_process != "bubblewrap":
            # bubblewrap has an option of its own for this: a runner that is killed takes its program along.
            return ["setpriv", "--pdeathsig", "KILL", *limited] if sys.platform == "linux" else limited
        assert self._bubblewrap is not None
        hidden = [part for path in settings.runner_hide for part in ("--tmpfs", path)]
        return [
            *(
                self._bubblewrap,
                "--die-with-parent",
                "--new-session",
                "--unshare-pid",
                "--unshare-ipc",
                "--unshare-uts",
            ),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/run"),
            *hidden,
            *(() if passage is None else passage.options),
            *("--bind", str(place), str(place), "--chdir", str(place / "work"), "--"),
            *(limited if passage is None else passage.led(limited)),
        ]


def lay_out(place: Path, files: Mapping[str, str]) -> None:
    """Writes a program's files below its home, beside `work` and `tmp`."""
    (place / "work").mkdir()
    (place / "tmp").mkdir()
    for path, text in files.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def variables(settings: RunnerSettings, home: str, own: Mapping[str, str]) -> dict[str, str]:
    """Returns a program's variables, except PATH."""
    passed = {name: os.environ[name] for name in settings.runner_pass if name in os.environ}
    return {"LANG": "C.UTF-8", "HOME": home, "TMPDIR": f"{home}/tmp", **passed, **own}


async def run_command(
    arguments: Sequence[str], env: Mapping[str, str], folder: Path, *, most_processes: int | None = None
) -> ProgramEnd:
    """Runs a command in a group of its own until it ends; then its group is ended, also when this is cancelled.

    Raises `TooManyProcesses` once it has more than `most_processes`.
    """
    # A pipe of ours, because asyncio's own would have the end wait for whoever else holds it: a server that a program
    # has left behind in another group, for example.
    read, write = os.pipe()
    printed = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(printed)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb"))
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env=env,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(write)
        reading = asyncio.create_task(_read_end(printed))
        growing = asyncio.create_task(_outgrow(process.pid, most_processes))
        ending = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({ending, growing}, return_when=asyncio.FIRST_COMPLETED)
            if growing.done():
                growing.result()
        finally:
            growing.cancel()
            # Also what it has left behind: its processes are in its group, and with bubblewrap in its sandbox.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = await ending
            await asyncio.wait({reading}, timeout=LAST_WORDS_SECONDS)
            pipe.close()
        return ProgramEnd(code, await reading)
    finally:
        pipe.close()


async def _outgrow(pid: int, most: int | None) -> None:
    """Raises `TooManyProcesses` when a program has too many; otherwise it never ends.

    The kernel's own limit (RLIMIT_NPROC) is none for root, and counts all processes of a user, whoever started them.
    """
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if most is not None and (found := await asyncio.to_thread(count_processes, pid)) > most:
            raise TooManyProcesses(f"its program had {found} processes, and may have {most} (ROLLOUTPOOL_RUNNER_PIDS)")


def count_processes(pid: int) -> int:
    """Counts a process, its descendants, and what is in its group or session; 0 where there is no /proc."""
    with _READING:
        found = _all_processes(int(time.monotonic() / LOOK_SECONDS))
    children: dict[int, list[int]] = {}
    for child, (parent, _, _) in found.items():
        children.setdefault(parent, []).append(child)
    own = {pid, *(other for other, (_, group, session) in found.items() if pid in (group, session))}
    left = [*own]
    while left:
        more = [child for child in children.get(left.pop(), ()) if child not in own]
        own.update(more)
        left += more
    return len(own & found.keys())


@lru_cache(maxsize=1)
def _all_processes(_: int) -> dict[int, tuple[int, ...]]:
    """Reads parent, group and session of all processes: once for all programs that look at about the same time."""
    found: dict[int, tuple[int, ...]] = {}
    for pid in filter(str.isdecimal, os.listdir("/proc") if sys.platform == "linux" else ()):
        with suppress(OSError):
            # The name before it may have blanks and brackets.
            numbers = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()
            found[int(pid)] = tuple(map(int, numbers[1:4]))
    return found


async def _read_end(stream: asyncio.StreamReader) -> str:
    """Reads to the end, and keeps the end of it."""
    tail = b""
    while part := await stream.read(65536):
        tail = (tail + part)[-TAIL:]
    return tail.decode(errors="replace")
