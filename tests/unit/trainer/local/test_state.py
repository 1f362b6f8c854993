"""One pool per state, whatever ended the last one; and nothing in it for other eyes."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import pytest

from rolloutpool_trainer.errors import LocalPoolError, StateInUse
from rolloutpool_trainer.local.state import State, default_state

HOLD = "import sys; from pathlib import Path; from rolloutpool_trainer.local.state import State; \
state = State(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


def auth() -> str:
    """As Flower's."""
    return f"user:{token_hex(16)}"


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the state until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_pool_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        with pytest.raises(StateInUse, match=f"{tmp_path} is in use by pid {other.pid}"):
            State(tmp_path)
        other.communicate()
    with State(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_the_lock_of_a_killed_pool_is_no_obstacle(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        other.kill()
    with State(tmp_path) as state:
        assert state.path == tmp_path


def test_the_lock_lasts_until_its_last_holder_ends(tmp_path: Path) -> None:
    """As when a pool was killed and its Redis, which got the lock from it, still ends."""
    first = State(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(first.lock_fd,)) as redis:
        first.release()
        with pytest.raises(StateInUse):
            State(tmp_path)
        redis.communicate()
    with State(tmp_path) as second:
        assert second.path == tmp_path


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with State(tmp_path / "new") as state:
            state.secret(state.flower_auth, auth)
            files = [state.path, *state.path.rglob("*")]
            assert {file: oct(stat.S_IMODE(file.stat().st_mode) & 0o077) for file in files} == dict.fromkeys(
                files, "0o0"
            )
    finally:
        os.umask(before)


def test_secrets_are_kept(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        first = state.secret(state.flower_auth, auth)
    with State(tmp_path) as state:
        assert state.secret(state.flower_auth, auth) == first
    assert first.startswith("user:")
    assert len(first) > 30


def test_a_temporary_state_vanishes() -> None:
    with State(None) as state:
        assert state.logs.is_dir()
    assert not state.path.exists()


def test_a_state_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalPoolError, match="set ROLLOUTPOOL_STATE to another"):
        State(tmp_path / "file")


def test_where_it_is_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state() == tmp_path / ".local" / "state" / "rolloutpool"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert default_state() == tmp_path / "xdg" / "rolloutpool"
    monkeypatch.setenv("ROLLOUTPOOL_STATE", str(tmp_path / "own"))
    assert default_state() == tmp_path / "own"
