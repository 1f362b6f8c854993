"""The commit comes from the environment, else from git where the sources are a checkout, else it is unknown."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutpool_common.process import build
from rolloutpool_common.process.build import COMMIT_VARIABLE, UNKNOWN, commit, commit_of

ROOT = Path(__file__).parents[4]
SAYS_IT = "from rolloutpool_common.process.build import commit; print(commit())"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    commit.cache_clear()
    yield
    commit.cache_clear()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit, in the form of this one."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "pyproject.toml").touch()
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "--quiet"], [*author, "commit", "--quiet", "--allow-empty", "--message", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def head(root: Path) -> str:
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, " 0123abc ")
    assert commit() == "0123abc"


@pytest.mark.parametrize("value", ["", " ", "a b", 'x"} 1', "x" * 65])
def test_what_is_no_name_of_a_commit_is_not_taken(value: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, value)
    monkeypatch.setattr(build, "_ROOT", checkout)
    assert commit() == head(checkout)


def test_git_says_it_in_a_checkout_and_is_asked_once(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_ROOT", checkout)
    expected = head(checkout)
    assert (commit(), len(expected)) == (expected, 40)
    monkeypatch.setenv("PATH", "")
    assert commit() == expected


def test_these_sources_know_their_own() -> None:
    environment = {name: value for name, value in os.environ.items() if name != COMMIT_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", SAYS_IT], capture_output=True, text=True, check=True, cwd="/", env=environment
    )
    assert done.stdout.strip() == (head(ROOT) if (ROOT / ".git").exists() else UNKNOWN)


def test_another_repository_around_an_environment_is_not_ours(checkout: Path) -> None:
    (checkout / "common" / "pyproject.toml").unlink()
    assert commit_of(checkout) == UNKNOWN


def test_without_git_or_a_commit_it_is_unknown(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit_of(tmp_path_factory.mktemp("installed")) == UNKNOWN
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/nowhere\n")
    assert commit_of(checkout) == UNKNOWN
    monkeypatch.setenv("PATH", "")
    assert commit_of(checkout) == UNKNOWN
