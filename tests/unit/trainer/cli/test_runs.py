"""The commands that steer a run, against a scripted API."""

from tests.support.answered_pool import RUN
from tests.support.stub_pool import Answer, StubPool
from typer.testing import CliRunner, Result

from rolloutpool_trainer.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_a_run_shows_its_version_and_its_pause(pool: StubPool) -> None:
    pool.on("GET", "/v1/runs/job7", Answer(body=RUN))
    shown = run("run", "job7").stdout
    assert "13" in shown
    assert "since 2026-01-01 00:01:00 UTC" in shown
    assert "cancelled in 3,600 s" in shown


def test_a_run_without_an_announcement_shows_what_rollouts_report(pool: StubPool) -> None:
    pool.on("GET", "/v1/runs/job7", Answer(body=RUN | {"policy_version": None, "paused_at": None}))
    shown = run("run", "job7").stdout
    assert "none; rollouts report 12" in shown
    assert "no" in shown


def test_an_announcement_sends_the_version_as_it_was_typed(pool: StubPool) -> None:
    pool.on("PUT", "/v1/runs/job7/policy_version", Answer(body=RUN))
    assert run("announce", "job7", "13", "--rollback").exit_code == 0
    assert pool.requests[0].body == {"policy_version": "13", "rollback": True}


def test_pause_and_resume(pool: StubPool) -> None:
    pool.on("POST", "/v1/runs/job7/pause", Answer(body=RUN))
    pool.on("POST", "/v1/runs/job7/resume", Answer(404, {"error": {"message": "run 'job7': unknown"}}))
    assert run("pause", "job7").exit_code == 0
    failed = run("resume", "job7")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "unknown" in failed.stderr


def test_a_lower_version_is_one_line(pool: StubPool) -> None:
    pool.on("PUT", "/v1/runs/job7/policy_version", Answer(409, {"error": {"message": "it is at 14"}}))
    failed = run("announce", "job7", "13")
    assert failed.exit_code == 1
    assert "it is at 14" in failed.stderr
