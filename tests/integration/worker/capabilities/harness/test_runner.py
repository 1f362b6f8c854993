"""A runner starts a program that knows nothing of the pool; what becomes of it when program or runner dies."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from tests.support.bubblewrap import needs_bubblewrap
from tests.support.fake_docker import calls, fake_docker
from tests.support.harness import DoorProcess, LedPolicy, assert_all_once, running_runner
from tests.support.pool import Pool
from tests.support.processes import runs
from tests.support.waiting import until

from rolloutpool_common.protocol.result import RolloutResult

PROGRAM = Path(__file__).parents[4] / "support" / "small_program.py"
PYTHON = str(Path(sys.executable).resolve())
"""The interpreter itself: a sandbox sees nothing below /tmp, where the environment may be."""
ENV = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}"}


@pytest.fixture
async def reconciled(pool: Pool) -> AsyncIterator[Pool]:
    async with pool.reconciled():
        yield pool


async def ran(pool: Pool, led_url: str, *arguments: str, prompt: str = "do 2", **choice: Any) -> RolloutResult:
    command = [PYTHON, "{home}/program.py", "{prompt}", *arguments]
    files = {"program.py": PROGRAM.read_text()}
    shared = {
        "server_url": led_url,
        "messages": [{"role": "user", "content": prompt}],
        "harness": {"command": command, "env": ENV, "files": files, **choice},
        "max_tokens_total": 100_000,
    }
    (uid,) = await pool.submit(shared=shared, asks={"harness": True})
    return await pool.result(uid, 40)


@pytest.mark.parametrize("process", ["unsafe", pytest.param("bubblewrap", marks=needs_bubblewrap)])
async def test_a_program_is_run_and_its_end_is_the_session_s(
    reconciled: Pool, door: DoorProcess, led: LedPolicy, led_url: str, process: str
) -> None:
    before = len(led.sampled)
    with running_runner(reconciled.url, door, ROLLOUTPOOL_RUNNER_PROCESS=process):
        result = await ran(reconciled, led_url)
    assert (result.status, result.failure, result.reward) == ("completed", None, None)
    assert len(result.samples) == 1
    assert_all_once(result, led.sampled[before:])
    # The tool really ran, in the program's own place.
    assert [one.content for one in result.messages if one.role == "tool"] == ["0\n", "1\n"]


async def test_a_program_that_dies_is_started_again_and_gets_the_replies_that_it_had(
    reconciled: Pool, door: DoorProcess, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    before = len(led.sampled)
    with running_runner(reconciled.url, door):
        result = await ran(reconciled, led_url, "2", str(tmp_path / "once"))
    assert (result.status, result.failure) == ("completed", None)
    assert len(led.sampled) - before == 3
    assert_all_once(result, led.sampled[before:])
    assert result.harness is not None
    assert result.harness.places == 2


async def test_with_restart_what_the_dead_program_said_is_left_out(
    reconciled: Pool, door: DoorProcess, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    before = len(led.sampled)
    with running_runner(reconciled.url, door):
        result = await ran(reconciled, led_url, "2", str(tmp_path / "once"), on_death="restart")
    lost, lived = led.sampled[before : before + 2], led.sampled[before + 2 :]
    assert len(lived) == 3
    assert_all_once(result, lived)
    report = result.harness
    assert report is not None
    assert sum(line.left_out.get("agent_restarted", 0) for line in report.lines) == sum(map(len, lost))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/bin/false"], "ended with code 1, the last of 3 times"),
        (["no-such-program"], "has no program"),
        (["/bin/sleep", "60"], "ran for more than harness.seconds"),
    ],
    ids=["fails", "missing", "hangs"],
)
async def test_a_program_that_cannot_go_on_is_no_reward_of_zero(
    reconciled: Pool, door: DoorProcess, led_url: str, command: list[str], words: str
) -> None:
    with running_runner(reconciled.url, door):
        shared = {"server_url": led_url, "harness": {"command": command, "seconds": 2}}
        (uid,) = await reconciled.submit(shared=shared, asks={"harness": True})
        result = await reconciled.result(uid, 40)
    assert result.failure is not None
    assert (result.failure.category, result.failure.kind, result.reward) == ("harness_lost", "infra", None)
    assert words in result.failure.message


async def test_a_cancelled_rollout_ends_its_program(
    reconciled: Pool, door: DoorProcess, led_url: str, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    command = ["/bin/bash", "-c", f"echo $$ > {pid}; exec sleep 600"]
    with running_runner(reconciled.url, door):
        (uid,) = await reconciled.submit(
            shared={"server_url": led_url, "harness": {"command": command}}, asks={"harness": True}
        )

        async def started() -> bool:
            return pid.exists() and pid.read_text().strip() != ""

        await until(started, 20)
        await reconciled.store.rollouts.cancel(uid)

        async def ended() -> bool:
            return not runs(int(pid.read_text()))

        await until(ended, 20)


@pytest.mark.slow
async def test_a_runner_that_dies_loses_nothing(
    reconciled: Pool, door: DoorProcess, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    before = len(led.sampled)
    flag = tmp_path / "flag"
    # The first one stops after its first call, and its runner is killed then.
    script = f"[ -e {flag} ] || {{ {sys.executable} {PROGRAM} 'do 1'; touch {flag}; sleep 600; }}"
    command = ["/bin/bash", "-c", f"{script}; exec {sys.executable} {PROGRAM} 'do 1'"]
    with running_runner(reconciled.url, door) as first:
        (uid,) = await reconciled.submit(
            shared={"server_url": led_url, "harness": {"command": command, "env": ENV}, "max_tokens_total": 100_000},
            asks={"harness": True},
        )

        async def reached() -> bool:
            return flag.exists()

        await until(reached, 30)
        first.kill()
        with running_runner(reconciled.url, door):
            result = await reconciled.result(uid, 60)
    assert (result.status, result.failure) == ("completed", None)
    assert len(led.sampled) - before == 2
    assert_all_once(result, led.sampled[before:])


async def test_a_program_in_a_container_is_the_same(
    reconciled: Pool, door: DoorProcess, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    before = len(led.sampled)
    path = f"{fake_docker(tmp_path)}{os.pathsep}{os.environ['PATH']}"
    with running_runner(reconciled.url, door, ROLLOUTPOOL_RUNNER_PROCESS="docker", PATH=path):
        result = await ran(reconciled, led_url, image="agents:1")
    assert (result.status, result.failure) == ("completed", None)
    assert_all_once(result, led.sampled[before:])
    (call,) = calls(tmp_path)
    assert "rp-1-" in str(call["variables"])
    assert "rp-1-" not in str(call["arguments"])


async def test_a_runner_without_the_api_s_keys_says_so_at_once(
    reconciled: Pool, door: DoorProcess, led_url: str, tmp_path: Path
) -> None:
    other = tmp_path / "keys"
    other.write_text(f"{Fernet.generate_key().decode()}\n")
    other.chmod(0o600)
    with running_runner(reconciled.url, door, ROLLOUTPOOL_SECRETS_FILE=str(other)):
        result = await ran(reconciled, led_url)
    assert result.failure is not None
    assert "give API and workers the same keys" in result.failure.message


async def test_what_a_program_has_printed_is_kept_where_that_is_asked_for(
    reconciled: Pool, door: DoorProcess, led_url: str, tmp_path: Path
) -> None:
    with running_runner(reconciled.url, door, ROLLOUTPOOL_RUNNER_OUTPUT=str(tmp_path)):
        result = await ran(reconciled, led_url, prompt="do 1")
    kept = [(path.name, path.read_text()) for path in sorted(tmp_path.iterdir())]  # noqa: ASYNC240
    assert kept == [(f"{result.uid}-1.txt", "Said after 1: 0\n\n")]


async def test_what_a_program_leaves_running_does_not_keep_its_session_open(
    reconciled: Pool, door: DoorProcess, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    """A server that its tool has started holds the program's output open."""
    pid, before = tmp_path / "pid", len(led.sampled)
    script = f"sleep 600 & echo $! > {pid}; {sys.executable} {PROGRAM} 'do 1'"
    shared = {
        "server_url": led_url,
        "harness": {"command": ["/bin/bash", "-c", script], "env": ENV, "seconds": 60},
        "max_tokens_total": 100_000,
    }
    with running_runner(reconciled.url, door):
        (uid,) = await reconciled.submit(shared=shared, asks={"harness": True})
        result = await reconciled.result(uid, 40)
    assert (result.status, result.failure) == ("completed", None)
    assert_all_once(result, led.sampled[before:])
    assert not runs(int(pid.read_text()))
