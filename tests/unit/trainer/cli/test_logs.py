"""`rolloutpool logs`: several files in the order of time, their ends only, and what is added."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rolloutpool_trainer.cli import app, logs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the local pool's logs are."""
    monkeypatch.setenv("ROLLOUTPOOL_STATE", str(tmp_path))
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["logs", *arguments])


def entry(second: int, event: str, **fields: object) -> str:
    return json.dumps({"timestamp": f"2026-01-01T00:00:{second:02}Z", "level": "info", "event": event, **fields}) + "\n"


def last_words(*arguments: str) -> list[str]:
    return [line.split()[-1] for line in run(*arguments).stdout.splitlines()]


def test_files_are_merged_by_time_and_a_traceback_stays_with_its_line(folder: Path) -> None:
    (folder / "api.log").write_text(entry(1, "first") + "Traceback:\n  x\n" + entry(5, "fifth", batch_id="b1"))
    (folder / "worker-0.log").write_text(entry(3, "third") + "{broken\n" + entry(6, "sixth"))
    (folder / "redis.log").write_text("no time at all\n")
    lines = run().stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [
        "all",
        "first",
        "Traceback:",
        "x",
        "third",
        "{broken",
        "batch_id=b1",
        "sixth",
    ]
    assert lines[-1] == "worker-0  2026-01-01T00:00:06Z  info  sixth"
    assert [line.split()[-1] for line in run("-n", "2").stdout.splitlines()] == ["batch_id=b1", "sixth"]
    assert [line.split()[-1] for line in run("worker-0", "redis").stdout.splitlines()] == [
        "all",
        "third",
        "{broken",
        "sixth",
    ]
    assert run("-n", "0").stdout == ""
    assert run("--id", "b1").stdout.splitlines() == [lines[-2]]


def test_controls_are_shown_not_obeyed(folder: Path) -> None:
    (folder / "api.log").write_bytes(b"\x1b[2J \xff\n" + entry(1, "e\x1b[31m", k="\x9b").encode())
    for option in ([], ["--json"]):
        done = run(*option)
        assert done.exit_code == 0
        assert "\x1b" not in done.stdout
        assert "\x9b" not in done.stdout


def test_of_a_large_file_the_end_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TAIL_BYTES", 200)
    text = "".join(entry(n % 60, f"event-{n}") for n in range(500))
    (folder / "api.log").write_text(text)
    assert last_words("-n", "1000") == ["event-498", "event-499"]
    # What names an id is looked for in all of it.
    assert run("--id", 'event-17"').stdout.split()[-1] == "event-17"


@pytest.mark.parametrize("arguments", [["nobody"], ["api", "../x"]])
def test_an_unknown_process_is_named_with_those_that_there_are(folder: Path, arguments: list[str]) -> None:
    (folder / "api.log").touch()
    done = run(*arguments)
    assert done.exit_code == 2
    assert "there are api" in done.stderr


def test_without_a_local_pool_it_says_where_logs_are(tmp_path: Path) -> None:
    done = run("--state", str(tmp_path))
    assert done.exit_code == 1
    assert "standard error" in done.stderr


def test_what_is_added_is_followed_also_into_a_new_file(folder: Path) -> None:
    file = folder / "api.log"
    file.write_text(entry(1, "old"))
    command = [str(Path(sys.executable).with_name("rolloutpool")), "logs", "-f"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as seen:
        try:
            assert seen.stdout is not None
            assert seen.stdout.readline().endswith("old\n")
            with file.open("a") as out:
                out.write(entry(2, "added"))
                out.write('{"half": ')
            assert seen.stdout.readline().endswith("added\n")
            with file.open("a") as out:
                out.write("1}\n")
            assert seen.stdout.readline().endswith("half=1\n")
            # The pool was started again.
            file.write_text(entry(3, "anew"))
            assert seen.stdout.readline().endswith("anew\n")
        finally:
            seen.kill()
