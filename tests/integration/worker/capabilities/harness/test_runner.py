"""A runner starts a program that knows nothing of the pool; what becomes of it when program or runner dies."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.harness import DoorProcess, LedPolicy, assert_all_once, running_runner
from tests.support.pool import Pool
from tests.support.processes import runs
from tests.support.run_programs import ENV, PROGRAM, ran
from tests.support.waiting import until_true


@pytest.fixture(scope="module", autouse=True)
def runner(pool_url: str, door: DoorProcess) -> Iterator[None]:
    """One for all tests here; those of other settings are in `test_runner_settings.py`."""
    with running_runner(pool_url, door):
        yield


async def test_a_program_is_run_and_its_end_is_the_session_s(reconciled: Pool, led: LedPolicy, led_url: str) -> None:
    before = len(led.sampled)
    result = await ran(reconciled, led_url)
    assert (result.status, result.failure, result.reward) == ("completed", None, None)
    assert len(result.samples) == 1
    assert_all_once(result, led.sampled[before:])
    # The tool really ran, in the program's own place.
    assert [one.content for one in result.messages if one.role == "tool"] == ["0\n", "1\n"]


async def test_a_program_that_dies_is_started_again_and_gets_the_replies_that_it_had(
    reconciled: Pool, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    before = len(led.sampled)
    result = await ran(reconciled, led_url, "2", str(tmp_path / "once"))
    assert (result.status, result.failure) == ("completed", None)
    assert len(led.sampled) - before == 3
    assert_all_once(result, led.sampled[before:])
    assert result.harness is not None
    assert result.harness.places == 2


async def test_with_restart_what_the_dead_program_said_is_left_out(
    reconciled: Pool, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    before = len(led.sampled)
    result = await ran(reconciled, led_url, "2", str(tmp_path / "once"), on_death="restart")
    lost, lived = led.sampled[before : before + 2], led.sampled[before + 2 :]
    assert len(lived) == 3
    assert_all_once(result, lived)
    report = result.harness
    assert report is not None
    assert sum(line.left_out.get("agent_restarted", 0) for line in report.lines) == sum(map(len, lost))


CANNOT_GO_ON = {
    "ended with code 1, the last of 3 times": ["/bin/false"],
    "has no program": ["no-such-program"],
    "ran for more than harness.seconds": ["/bin/sleep", "60"],
}


async def test_a_program_that_cannot_go_on_is_no_reward_of_zero(reconciled: Pool, led_url: str) -> None:
    uids = await reconciled.submit(
        [{"harness": {"command": command, "seconds": 2}} for command in CANNOT_GO_ON.values()],
        shared={"server_url": led_url},
        asks={"harness": True},
    )
    for uid, words in zip(uids, CANNOT_GO_ON, strict=True):
        failure, reward = (result := await reconciled.result(uid, 40)).failure, result.reward
        assert failure is not None
        assert (failure.category, failure.kind, reward) == ("harness_lost", "infra", None)
        assert words in failure.message


async def test_a_cancelled_rollout_ends_its_program(reconciled: Pool, led_url: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["/bin/bash", "-c", f"echo $$ > {pid}; exec sleep 600"]
    (uid,) = await reconciled.submit(
        shared={"server_url": led_url, "harness": {"command": command}}, asks={"harness": True}
    )
    await until_true(lambda: pid.exists() and pid.read_text().strip() != "", 20)
    await reconciled.store.rollouts.cancel(uid)
    await until_true(lambda: not runs(int(pid.read_text())), 20)


async def test_what_a_program_leaves_running_does_not_keep_its_session_open(
    reconciled: Pool, led: LedPolicy, led_url: str, tmp_path: Path
) -> None:
    """A server that its tool has started holds the program's output open."""
    pid, before = tmp_path / "pid", len(led.sampled)
    script = f"sleep 600 & echo $! > {pid}; {sys.executable} {PROGRAM} 'do 1'"
    shared = {
        "server_url": led_url,
        "harness": {"command": ["/bin/bash", "-c", script], "env": ENV, "seconds": 60},
        "max_tokens_total": 100_000,
    }
    (uid,) = await reconciled.submit(shared=shared, asks={"harness": True})
    result = await reconciled.result(uid, 40)
    assert (result.status, result.failure) == ("completed", None)
    assert_all_once(result, led.sampled[before:])
    assert not runs(int(pid.read_text()))
