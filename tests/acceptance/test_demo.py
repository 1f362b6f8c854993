"""`rolloutpool demo` as a stranger runs it: what it shows, what it proves, and what it leaves behind."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.printed_documents import read_document

COMMAND = str(Path(sys.executable).with_name("rolloutpool"))


@contextmanager
def demo(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo with its own temporary directory; killed at the end if it still runs."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    process = subprocess.Popen(
        [COMMAND, "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Its output up to the line with this text."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"it ended without {text!r}:\n{seen}")


def children_of(pid: int) -> list[int]:
    """Process ids of direct children."""
    ids = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        ids += [int(word) for word in (task / "children").read_text().split()]
    return ids


def kept_viewer(shown: str, *, as_json: bool) -> str:
    """The viewer's address, where a demo that stays up says it."""
    if not as_json:
        (viewer,) = re.findall(r"^viewer +(\S+)$", shown, re.MULTILINE)
        (batch,) = re.findall(r"^next: open (\S+),", shown, re.MULTILINE)
        assert re.fullmatch(re.escape(viewer) + r"#/batch/b[0-9a-f]{32}", batch)
        return str(viewer)
    # Notes go to standard error, which is the same pipe here.
    document = read_document("demo", shown[shown.index("{\n") : shown.rindex("\n}") + 2])
    assert (document["rollouts"], document["mismatches"], len(document["workers"])) == (2, 0, 1)
    return str(document["viewer"])


def test_the_demo_proves_its_masks_and_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--rollouts", "20", "--group-size", "8") as process:
        started = read_until(process, "scripted trainer on ports")
        children = children_of(process.pid)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert len(children) == 5
    assert "starting Redis, API, 2 workers and Flower" in started
    assert re.search(r"checked by the trainer: [\d,]+ tokens of 20 rollouts .* 0 mismatches", output)
    assert re.search(r"│ all +│ +20 │ +\d+ │ +[\d,]+ │ +[\d,]+ │ +[\d.]+ │ exact 20", output)
    assert "⟦" in output
    assert re.search(r"trained \d+ of \d+ tokens", output)
    assert re.search(r"API docs  http://127\.0\.0\.1:\d+/docs", output)
    assert re.search(r"Flower    http://127\.0\.0\.1:\d+", output)
    assert re.search(r"viewer    http://127\.0\.0\.1:\d+/ui\n", output)
    # Nothing is left that could be looked at.
    assert output.splitlines()[-1].startswith("next: `make demo KEEP=1`")
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "options"), [pytest.param(signal.SIGINT, [], marks=pytest.mark.slow), (signal.SIGTERM, ["--json"])]
)
def test_keep_stays_up_until_it_is_told_to_end(tmp_path: Path, number: signal.Signals, options: list[str]) -> None:
    with contextlib.ExitStack() as taken:
        ports = [taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
        chosen = ("--port", str(ports[0]), "--callback-port", str(ports[1]))
        process = taken.enter_context(demo(tmp_path, "--rollouts", "2", "--workers", "1", "--keep", *chosen, *options))
        shown = read_until(process, "running; Ctrl-C stops")
        assert f"port {ports[0]} is taken; the API takes" in shown
        assert f"port {ports[1]} is taken; the scripted trainer takes" in shown
        viewer = kept_viewer(shown, as_json=bool(options))
        with urlopen(viewer, timeout=10) as page:
            assert b"<title>rolloutpool</title>" in page.read()
        with urlopen(viewer.removesuffix("/ui") + "/v1/batches", timeout=10) as answer:
            (batch,) = json.load(answer)["batches"]
        assert (batch["state"], batch["total"]) == ("complete", 2)
        # In JSON there is no such line; the list at the viewer's address has the batch.
        assert options or f"next: open {viewer}#/batch/{batch['batch_id']}," in shown
        children = children_of(process.pid)
        assert children
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "stopped; nothing is left running" in output
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_survives_kill_9(tmp_path: Path) -> None:
    with demo(tmp_path, "--rollouts", "2", "--workers", "1", "--keep") as process:
        read_until(process, "running; Ctrl-C stops")
        waiting = [os.pidfd_open(pid) for pid in children_of(process.pid)]
        process.kill()
    for descriptor in waiting:
        # A descriptor of a process is readable when the process has ended.
        ended, _, _ = select.select([descriptor], [], [], 20)
        os.close(descriptor)
        assert ended
