"""Places: the homes of programs on a runner's machine, and the directories of their ways to the door (`passage`).

1. Each is empty at first, and is deleted at its end.
2. A runner that is killed deletes nothing, and a home may hold prompts, tokens and gigabytes. So its process holds a
   lock on each of its places for as long as it lives.
3. A runner that starts deletes the places that nobody holds, and ends what may still run there.
4. A place gets its name once it is locked, so nobody finds one that its runner is still making.
"""

import asyncio
import fcntl
import os
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import structlog

from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings

_log = structlog.stdlib.get_logger(__name__)

# Runners of earlier builds named theirs `rolloutpool-place-…` and `rolloutpool-door-…`, and held no locks, so those are
# left alone.
_NEW, HOMES, WAYS = "rolloutpool-new-", "rolloutpool-home-", "rolloutpool-way-"


@asynccontextmanager
async def made_place(name: str, folder: Path | None) -> AsyncIterator[Path]:
    """Makes an empty place whose name begins so, in a directory or the system's, and deletes it in the end."""
    made = Path(tempfile.mkdtemp(prefix=_NEW, dir=folder))
    with ExitStack() as stack:
        place = made
        # Without its name nobody takes it for one that was left: a network's file system may have no such locks.
        with suppress(OSError):
            stack.enter_context(_locked(made))
            place = made.with_name(made.name.replace(_NEW, name))
            os.rename(made, place)
        try:
            yield place
        finally:
            await asyncio.to_thread(_delete, place)


async def delete_left_places(settings: RunnerSettings, end: Callable[[Path], Awaitable[object]] | None = None) -> int:
    """Deletes the places of runners that were killed; returns how many. `end` ends what may still run in one."""
    deleted = 0
    for place in _named(settings.runner_places):
        # Its runner lives, or it is another user's, or another runner was faster.
        with suppress(OSError), _locked(place):
            if end is not None:
                await end(place)
            await asyncio.to_thread(_delete, place)
            deleted += not place.exists()
    return deleted


def variables_file(place: Path) -> Path:
    """Where the variables of a program are that runs in a container: beside its home, which the container sees."""
    return place.with_name(f"{place.name}.variables")


def _named(folder: Path | None) -> list[Path]:
    usual = Path(tempfile.gettempdir())
    return [*(folder or usual).glob(f"{HOMES}*"), *usual.glob(f"{WAYS}*")]


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Holds a place; raises `OSError` where another process holds it, or it is no directory of this user."""
    found = place.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & stat.S_IRUSR:
        # Its program has shut it.
        place.chmod(stat.S_IRWXU)
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            # A runner of root could open and delete it.
            raise PermissionError(f"{place} is another user's")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _delete(place: Path) -> None:
    """Deletes a place, also what a program has shut (Go's modules are read-only) or nested 1,000 levels deep."""
    variables_file(place).unlink(missing_ok=True)
    # `shutil` fails at both.
    opens = ("find", place, "-type", "d", "!", "-perm", "-700", "-execdir", "chmod", "u+rwx", "{}", ";")
    for command in (("rm", "-rf", place), opens, ("rm", "-rf", place)):
        # Without room for a process it stays for the next runner; its program has ended all the same.
        with suppress(OSError):
            if place.exists():
                subprocess.run(command, check=False, env={"PATH": os.defpath}, stderr=subprocess.DEVNULL)
    if place.exists():
        _log.warning("a place could not be deleted", place=str(place))
