"""The directory in which the local pool keeps what outlives it: accepted work, logs, passwords.

Only one pool may use a state. The pool holds a lock on it, and so does its Redis: if the pool is killed, its Redis may
take a moment to end, and meanwhile no second Redis can open the same files. Only the owner can read the files.
"""

import base64
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rolloutpool_trainer.errors import LocalPoolError, StateInUse

ENDING_SECONDS = 5.0
"""How long the processes of a killed pool may take to release the lock."""


def new_secrets_key() -> str:
    """Makes a Fernet key, which is one line of the file that ROLLOUTPOOL_SECRETS_FILE names."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def default_state() -> Path:
    """Returns the directory that `ROLLOUTPOOL_STATE` names, or else one in the user's state directory."""
    configured = os.environ.get("ROLLOUTPOOL_STATE")
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "rolloutpool"


class State:
    """A locked state directory."""

    def __init__(self, path: Path | None) -> None:
        """Makes the directory if it is missing, and takes its lock; None makes a temporary one that `release` removes.

        Raises `StateInUse` where another pool runs on it, and `LocalPoolError` where it cannot be written.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="rolloutpool-") if path is None else None
        self.path = Path(self._temporary.name) if self._temporary else Path(path or "").expanduser().absolute()
        self.logs = self.path / "logs"
        """Directory of the children's logs."""
        self.redis = self.path / "redis"
        """Redis' working directory."""
        self.flower_auth = self.path / "flower.auth"
        """File with Flower's `user:password`."""
        self.redis_url = self.path / "redis.url"
        """File with the URL of the pool's own Redis, for further workers on this machine."""
        self.secrets_file = self.path / "secrets.keys"
        """File with the keys for callers' secrets, which further workers on this machine need too."""
        try:
            for directory in (self.path, self.logs, self.redis):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LocalPoolError(
                f"cannot write the state directory {self.path}: {error.strerror}; set ROLLOUTPOOL_STATE to another"
            ) from error
        try:
            self._lock()
        except BaseException:
            os.close(self.lock_fd)
            raise
        os.ftruncate(self.lock_fd, 0)
        os.pwrite(self.lock_fd, str(os.getpid()).encode(), 0)

    def secret(self, file: Path, make: Callable[[], str]) -> str:
        """Returns the secret in a file; it is made when it is first asked for, and kept over restarts."""
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            value = make()
            self.write(file, value)
            return value

    def write(self, file: Path, text: str) -> None:
        """Writes a file, with a newline, that only its owner can read; a reader sees all of it or none."""
        # A pool that was killed may have left its draft, which O_EXCL would refuse to open.
        draft = file.with_name(file.name + ".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text + "\n")
        draft.replace(file)

    def release(self) -> None:
        """Releases the lock; a temporary state is removed."""
        os.close(self.lock_fd)
        if self._temporary:
            self._temporary.cleanup()

    def _lock(self) -> None:
        deadline = time.monotonic() + ENDING_SECONDS
        while True:
            try:
                fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder = os.pread(self.lock_fd, 32, 0).decode(errors="replace").strip()
                # If the holder has ended, only its Redis still has the lock, and that will end in a moment.
                if _runs(holder) or time.monotonic() > deadline:
                    raise StateInUse(
                        f"state {self.path} is in use by pid {holder or 'unknown'}; stop that pool, "
                        "or set ROLLOUTPOOL_STATE to another directory"
                    ) from None
                time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    # The process exists, but is another user's.
    except PermissionError:
        return True
    return True
