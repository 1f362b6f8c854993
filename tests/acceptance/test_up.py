"""`rolloutpool up` and single actors as an operator runs them: start, crash, restart, stop."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest
from tests.support.ports import free_port
from tests.support.printed_documents import read_document
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_trainer import RolloutClient

COMMAND = str(Path(sys.executable).with_name("rolloutpool"))
ITEM = {"messages": [{"role": "user", "content": "What is (2 + 3) * 4?"}]}

PLUGINS = """
from rolloutpool_worker.graders import grader
from rolloutpool_worker.tools import tool

@tool()
async def middle(context, low: int, high: int) -> object:
    "Gives the middle."

@tool()
async def half(context, number: int) -> object:
    "Gives the half."

@grader()
def few(rollout, options):
    return 1.0
"""


class Command:
    """A running `rolloutpool …`, whose output is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.output = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """The first match in its output from here on."""
        for line in self._stdout:
            self.output += line
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"it ended without {pattern!r}:\n{self.output}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code after a signal."""
        self.process.send_signal(number)
        self.output += self._stdout.read()
        return self.process.wait(60)

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[Command]:
    """A command in the background; killed at the end if it still runs, or if it hangs."""
    process = subprocess.Popen(
        [COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )
    # Only for what hangs: a busy machine takes a minute and a half for two pools.
    watchdog = threading.Timer(240, process.kill)
    watchdog.start()
    with process:
        try:
            yield Command(process)
        finally:
            watchdog.cancel()
            process.kill()


@contextmanager
def up(state: Path, *options: str, **environment: str) -> Iterator[tuple[Command, str]]:
    """A pool on this state that is ready, and its URL."""
    arguments = ("up", "--port", str(free_port()), "--door-port", str(free_port()), "--workers", "1", "--no-flower")
    with running(*arguments, *options, ROLLOUTPOOL_STATE=str(state), **environment) as command:
        url = command.read_until(r"^API +(http\S+)")[1]
        command.read_until("running; Ctrl-C stops")
        yield command, url


def test_it_tells_where_everything_is_and_starts_a_crashed_worker_again(tmp_path: Path) -> None:
    environments = tmp_path.with_suffix(".toml")
    environments.touch(0o600)
    environments.write_text('[numbers]\nkind = "http"\nurl = "http://127.0.0.1:9"\ncrash = "restartable"\n')
    options = ("--flower", "--flower-port", str(free_port()), "--environments", str(environments))
    (plugins := tmp_path.with_suffix(".plugins")).mkdir()
    (plugins / "mine.py").write_text(PLUGINS)
    with up(tmp_path, *options, PYTHONPATH=str(plugins), ROLLOUTPOOL_PLUGINS="mine") as (command, url):
        assert re.search(r"plug-ins +environment numbers; grader few; tool half, middle\n", command.output)
        flower, file = re.findall(r"Flower +(http\S+) +\(user:password in (\S+)\)", command.output)[0]
        user, password = Path(file).read_text().strip().split(":")
        assert httpx.get(f"{url}/docs").status_code == 200
        assert httpx.get(f"{flower}/workers", auth=(user, password)).status_code == 200
        assert httpx.get(f"{flower}/workers").status_code == 401
        assert password not in command.output
        with RolloutClient(url) as client:
            (worker,) = client.workers()
        assert "numbers" in worker.environments
        os.kill(worker["pid"], signal.SIGKILL)
        command.read_until(r"worker-1 ended \(SIGKILL\); starting it again")
        assert command.end() == 0
    assert {file.name for file in (tmp_path / "logs").iterdir()} == {
        "api.log",
        "door.log",
        "flower.log",
        "redis.log",
        "worker-1.log",
    }


def test_its_document_says_where_everything_is_and_a_second_one_is_refused(tmp_path: Path) -> None:
    options = ("--port", str(free_port()), "--workers", "1", "--no-flower", "--state", str(tmp_path), "--json")
    with running("up", *options) as command:
        command.read_until(r"^\}$")
        document = read_document("up", command.output[command.output.index("{\n") :])
        assert all(httpx.get(document[name]).status_code == 200 for name in ("docs", "viewer"))
        assert httpx.get(f"{document['api']}/readyz").status_code == 200
        assert (document["workers"], document["state"]) == (1, str(tmp_path))
        assert (document["flower"], document["flower_auth_file"]) == (None, None)
        assert Path(document["redis_url_file"]).read_text().startswith("redis://")
        assert all(Path(document[name]).exists() for name in ("secrets_file", "logs"))
        second = subprocess.run(
            [COMMAND, "up", "--state", str(tmp_path), "--port", str(free_port())],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert second.stderr.startswith(f"error: state {tmp_path} is in use by pid {command.process.pid}")
        assert len(second.stderr.splitlines()) == 1
        assert command.end(signal.SIGINT) == 0


def test_a_taken_port_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run(
            [COMMAND, "up", "--state", str(tmp_path), "--port", port], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert re.fullmatch(rf"error: port {port} .*--port or ROLLOUT_SERVER_PORT\n", done.stderr)


@pytest.mark.slow
def test_the_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    """The worker drains, because a model call is in flight that does not end; the second signal does not wait."""
    with running("mock-trainer", "--ports", str(free_port()), "--latency", "600") as trainer:
        callback = trainer.read_until(r"scripted trainer at (\S+);")[1]
        with up(tmp_path, ROLLOUTPOOL_DRAIN_SECONDS="600") as (command, url), RolloutClient(url) as client:
            batch = client.submit([ITEM], defaults={"tokenizer_name": "rolloutpool/tiny"}, trainer=callback)
            eventually(lambda: batch.status().counts.get(RolloutStatus.RUNNING))
            command.process.send_signal(signal.SIGTERM)
            command.read_until("once more ends everything at once")
            assert command.end() == 0
        trainer.process.kill()


def test_actors_run_alone_and_work_together(tmp_path: Path, redis_url: str) -> None:
    port = free_port()
    file = tmp_path / "batch.jsonl"
    file.write_text(f"{json.dumps(ITEM)}\n" * 4)
    address = ("--url", f"http://127.0.0.1:{port}")
    with (
        running("api", "--redis", redis_url, "--port", str(port)) as api,
        running("worker", "--redis", redis_url, "--processes", "2", "--tokenizer", "rolloutpool/tiny") as workers,
        running("mock-trainer", "--ports", str(free_port()), "--pool", address[1]) as trainer,
    ):
        callback = trainer.read_until(r"scripted trainer at (\S+);")[1]
        api.read_until("api listens")
        for _ in range(2):
            workers.read_until("worker started")
        options = ("--tokenizer", "rolloutpool/tiny", "--trainer", callback, "--wait", *address)
        submitted = cli("submit", str(file), *options)
        batch_id = submitted.stdout.strip()
        results = [json.loads(line) for line in cli("results", batch_id, *address).stdout.splitlines()]
        shown = cli("show", results[0]["uid"], "--tokenizer", "rolloutpool/tiny", *address).stdout
        state = cli("status", batch_id, *address).stdout
        health = cli("doctor", "--callback", callback, *address).stdout
        assert cli("watch", batch_id, *address).returncode == 0
        assert [actor.end() for actor in (workers, api, trainer)] == [0, 0, 0]
    assert [result["status"] for result in results] == ["completed"] * 4
    assert "⟦" in shown
    assert "completed 4" in state
    assert "2 alive" in health
    assert "rolloutpool/tiny is loaded" in health


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, well."""
    done = subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "160"}
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("command", ["api", "worker", "flower"])
def test_an_actor_that_is_not_installed_is_named(command: str) -> None:
    script = (
        "import importlib.util, sys\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from rolloutpool_trainer.cli import app\n"
        f"sys.exit(app([{command!r}, '--redis', 'redis://127.0.0.1:1']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "in the checkout: pip install -e common" in done.stderr
