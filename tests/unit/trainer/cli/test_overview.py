"""`batches`, `groups`, `open`, `purge` and `--version` for people; their JSON is in `test_documents`."""

import webbrowser
from importlib.metadata import version
from typing import Any

import pytest
from tests.support.answered_pool import STATISTICS, SUMMARY, URL, answer_all
from tests.support.api_documents import BATCH, status
from tests.support.stub_pool import Answer, StubPool, stub_pool
from typer.testing import CliRunner, Result

from rolloutpool_common.process.build import commit
from rolloutpool_trainer.cli import app
from rolloutpool_trainer.cli.overview import viewer_address


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def test_batches_sends_its_filters_and_shows_a_line_each(pool: StubPool) -> None:
    evil = {**SUMMARY, "run": "job7", "labels": {"step": "\x1b[31mred[bold]"}, "age_s": 7300.0}
    pool.on("GET", "/v1/batches", Answer(body={"batches": [evil], "next_cursor": None}))
    options = ["--state", "running", "--run", "job7", "--label", "step=3", "--owner", "ann", "-n", "5"]
    done = run("batches", *options)
    assert done.exit_code == 0, done.output
    _, line = done.stdout.splitlines()
    assert line.split()[:3] == [BATCH, "running", "2"]
    assert "2 h" in line
    assert "\x1b" not in line
    assert "red[bold]" in line
    asked = pool.requests[0].path
    assert all(part in asked for part in ("state=running", "run=job7", "label=step%3D3", "owner=ann", "limit=5"))


def test_without_batches_or_groups_it_says_so(pool: StubPool) -> None:
    pool.on("GET", "/v1/batches", Answer(body={"batches": [], "next_cursor": None}))
    pool.on("GET", f"{URL}/group-statistics", Answer(body={"of": "kl", "groups": [], "zero_spread": 0}))
    pool.on("GET", f"{URL}/groups", Answer(body={"groups": []}))
    assert run("batches").stdout == "none\n"
    assert run("groups", BATCH, "--of", "kl").stdout == "none\n"
    assert "of=kl" in pool.requests[1].path


def test_groups_marks_those_that_teach_nothing(pool: StubPool) -> None:
    answer_all(pool)
    other = {**STATISTICS, "group": "h", "deviation": 0.5, "zero_spread": False}
    bare = {**STATISTICS, "group": "i", "annotated": 0, "mean": None, "deviation": None, "zero_spread": False}
    with stub_pool() as second:
        body = {"of": "reward", "groups": [STATISTICS, other, bare], "zero_spread": 1}
        second.on("GET", f"{URL}/group-statistics", Answer(body=body))
        second.on("GET", f"{URL}/groups", Answer(body={"groups": []}))
        lines = run("groups", BATCH, "--url", second.url).stdout.splitlines()[1:]
    assert [line.split()[-2] for line in lines] == ["ZERO", "yes", "-"]
    assert run("groups", BATCH).stdout.splitlines()[1].split()[-1] == "usable"


@pytest.mark.parametrize(
    ("identity", "rest"),
    [
        (None, ""),
        (BATCH, f"#/batch/{BATCH}"),
        (f"{BATCH}-3", f"#/rollout/{BATCH}-3"),
        ("a/b ?#", "#/rollout/a%2Fb%20%3F%23"),
    ],
)
def test_addresses_of_the_viewer(identity: str | None, rest: str) -> None:
    assert viewer_address("http://pool:9000/", identity) == f"http://pool:9000/ui{rest}"


@pytest.mark.parametrize("works", [True, False])
def test_open_tells_a_browser_and_prints_the_address(
    pool: StubPool, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_it(address: str) -> bool:
        opened.append(address)
        return works

    monkeypatch.setattr(webbrowser, "open", open_it)
    done = run("open", BATCH)
    assert opened == [done.stdout.strip()] == [f"{pool.url}/ui#/batch/{BATCH}"]
    assert ("no browser" in done.stderr) is not works
    assert run("open", "--print").stdout == f"{pool.url}/ui\n"
    assert len(opened) == 1


def test_purge_asks_first(pool: StubPool) -> None:
    answer_all(pool)
    refused = run("purge", BATCH, stdin="n\n")
    assert (refused.exit_code, pool.requests) == (1, [])
    assert f"purged {BATCH}\n" in run("purge", BATCH, stdin="y\n").stdout
    assert run("purge", BATCH, "--yes").exit_code == 0
    assert [(seen.method, seen.path) for seen in pool.requests] == [("DELETE", f"{URL}?purge=true")] * 2


def test_a_batch_that_runs_is_not_purged(pool: StubPool) -> None:
    pool.on("DELETE", URL, Answer(409, {"error": {"message": "it still runs"}}))
    done = run("purge", BATCH, "--yes")
    assert done.exit_code == 1
    assert "it still runs" in done.stderr


def test_what_of_an_owner_does_not_end_or_comes_meanwhile_is_said(pool: StubPool) -> None:
    pool.on("GET", URL, Answer(body=status(state="running")))
    pool.on("DELETE", URL, Answer(body={"batch_id": BATCH, "cancelled": 2}))
    other = {**SUMMARY, "batch_id": "b" + "2" * 32}
    bobs = {**SUMMARY, "batch_id": "b" + "3" * 32, "owner": "bob"}
    lists: list[list[dict[str, Any]]] = [[SUMMARY], [], [SUMMARY, bobs], [], [SUMMARY, other], []]
    pool.on("GET", "/v1/batches", *(Answer(body={"batches": found, "next_cursor": None}) for found in lists))
    assert run("purge-owner", "ann", stdin="n\n").exit_code == 1
    assert {seen.method for seen in pool.requests} == {"GET"}
    done = run("purge-owner", "ann", "--yes", "--seconds", "0")
    assert done.exit_code == 1
    assert "1 have not ended within 0 s" in done.stderr
    assert "take the keys of 'ann' away" in done.stderr
    assert [(seen.method, seen.path) for seen in pool.requests if seen.method == "DELETE"] == [("DELETE", URL)]


def test_batches_of_an_owner_that_another_command_has_purged_are_no_error(pool: StubPool) -> None:
    """It ended at the first of them, and the owner's others were not even cancelled."""
    gone = Answer(404, {"error": {"message": "it is unknown"}})
    other = "b" + "2" * 32
    for method in ("GET", "DELETE"):
        pool.on(method, URL, gone)
    pool.on("GET", URL.replace(BATCH, other), Answer(body={**status(), "batch_id": other}))
    pool.on("DELETE", URL.replace(BATCH, other), Answer(body={"batch_id": other, "purged": True, "cancelled": 2}))
    lists: list[list[dict[str, Any]]] = [[SUMMARY, {**SUMMARY, "batch_id": other}], [], [], []]
    pool.on("GET", "/v1/batches", *(Answer(body={"batches": found, "next_cursor": None}) for found in lists))
    done = run("purge-owner", "ann", "--yes")
    assert done.exit_code == 0, done.output
    deleted = [seen.path for seen in pool.requests if seen.method == "DELETE" and other in seen.path]
    assert deleted == [URL.replace(BATCH, other), f"{URL.replace(BATCH, other)}?purge=true"]


def test_the_version() -> None:
    done = run("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"rolloutpool {version('rolloutpool-trainer')} (commit {commit()}, Python 3.")
    assert run().exit_code == 2
