"""A runner of its own for each test: how it starts programs, what it keeps of them, and its own death."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from tests.support.bubblewrap import needs_bubblewrap
from tests.support.fake_docker import calls, fake_docker
from tests.support.harness import DoorProcess, LedPolicy, assert_all_once, running_runner
from tests.support.pool import Pool
from tests.support.run_programs import ENV, PROGRAM, ran
from tests.support.waiting import until_true


@needs_bubblewrap
async def test_a_program_in_a_sandbox_is_the_same(
    reconciled: Pool, door: DoorProcess, led: LedPolicy, led_url: str
) -> None:
    before = len(led.sampled)
    with running_runner(reconciled.url, door, ROLLOUTPOOL_RUNNER_PROCESS="bubblewrap"):
        result = await ran(reconciled, led_url)
    assert (result.status, result.failure, result.reward) == ("completed", None, None)
    assert len(result.samples) == 1
    assert_all_once(result, led.sampled[before:])
    # The tool really ran, in the program's own place.
    assert [one.content for one in result.messages if one.role == "tool"] == ["0\n", "1\n"]


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
        await until_true(flag.exists, 30)
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


async def test_a_runner_that_is_told_twice_to_stop_leaves_nothing_behind(
    reconciled: Pool, door: DoorProcess, led_url: str, tmp_path: Path
) -> None:
    """Something holds its program's output open for a moment, so the second signal comes while it stops."""
    (tmp_path / "places").mkdir()
    command = ["bash", "-c", f"setsid -f sleep 2; touch {tmp_path}/runs; exec sleep 600"]
    with running_runner(reconciled.url, door, ROLLOUTPOOL_RUNNER_PLACES=str(tmp_path / "places")) as runner:
        (uid,) = await reconciled.submit(
            shared={"server_url": led_url, "harness": {"command": command}}, asks={"harness": True}
        )
        await until_true((tmp_path / "runs").exists, 20)
        for _ in range(2):
            runner.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
        await asyncio.to_thread(runner.wait)
    redis = reconciled.store.connection.redis
    assert (os.listdir(tmp_path / "places"), await redis.zcard("rp:places:held")) == ([], 0)
    assert await redis.zscore("rp:places:wanted", uid) is not None
    await reconciled.store.rollouts.cancel(uid)
