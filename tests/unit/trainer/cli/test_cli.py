"""Commands against a scripted API: what they send, what they print, and how they fail."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.answered_pool import VIEW
from tests.support.api_documents import BATCH, accepted, page, result, status, worker
from tests.support.finished_rollouts import forked
from tests.support.stub_pool import Answer, StubPool
from typer.testing import CliRunner, Result

from rolloutpool_trainer.cli import app, console
from rolloutpool_trainer.cli.actors import _ports
from rolloutpool_trainer.cli.demo import _by_worker, _print_table
from rolloutpool_trainer.client.results import FinishedRollout

ROLLOUT = {"messages": [{"role": "user", "content": "hi"}]}
FAILURE = {
    "kind": "infra",
    "boundary": "trainer",
    "category": "network_error",
    "message": "no answer",
    "retryable": True,
}
EVIL = "[bold]x[/bold] \x1b[31mred\x1b[0m \x9b2J\rover"


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def view(**changes: Any) -> dict[str, Any]:
    return VIEW | changes


def test_submit_sends_the_lines_and_prints_the_id(pool: StubPool, tmp_path: Path) -> None:
    pool.on("POST", "/v1/batches", Answer(202, accepted()))
    file = tmp_path / "batch.jsonl"
    file.write_text(f"{json.dumps(ROLLOUT)}\n\n{json.dumps(ROLLOUT)}\n")
    options = ["--tokenizer", "t", "--trainer", "http://h:1", "--trainer", "http://h:2", "--max-turns", "3"]
    more = ["--defaults", '{"sampling_params": {"top_k": 5}}', "--label", "run=a=b", "--idempotency-key", "k"]
    shares = ["--run", "job7", "--weight", "3", "--group", "min_usable=6,size=8,late=cancel"]
    done = run("submit", str(file), *options, *more, *shares)
    assert (done.exit_code, done.stdout) == (0, f"{BATCH}\n")
    request = pool.requests[0]
    assert request.headers["Idempotency-Key"] == "k"
    assert request.body["rollouts"] == [ROLLOUT, ROLLOUT]
    assert request.body["trainer"] == {"server_urls": ["http://h:1", "http://h:2"]}
    assert request.body["labels"] == {"run": "a=b"}
    assert (request.body["run"], request.body["weight"]) == ("job7", 3)
    assert request.body["group"] == {"min_usable": 6, "size": 8, "late": "cancel"}
    assert request.body["defaults"] == {"tokenizer_name": "t", "max_turns": 3, "sampling_params": {"top_k": 5}}


def test_submit_reads_stdin_and_waits(pool: StubPool) -> None:
    pool.on("POST", "/v1/batches", Answer(202, accepted()))
    pool.on("GET", f"/v1/batches/{BATCH}/results", Answer(body=page(0, 1, complete=True)))
    done = run("submit", "-", "--wait", stdin=json.dumps(ROLLOUT))
    assert done.exit_code == 0
    assert "2 of 2 completed" in done.stderr


def test_waiting_for_a_batch_with_failures_is_no_success(pool: StubPool) -> None:
    pool.on("POST", "/v1/batches", Answer(202, accepted()))
    failed = page(0, 1, complete=True)
    failed["items"][1]["result"] |= {"status": "failed", "finish_reason": "error", "failure": FAILURE}
    pool.on("GET", f"/v1/batches/{BATCH}/results", Answer(body=failed))
    done = run("submit", "-", "--wait", stdin=json.dumps(ROLLOUT))
    assert done.exit_code == 1
    assert "1 not completed: no answer\n1 of 2 completed" in done.stderr


@pytest.mark.parametrize(
    ("command", "stdin", "message"),
    [
        (["submit", "-"], "{}\n{oops", "line 2: not JSON"),
        (["submit", "-"], "[1]", "line 1: not a JSON object"),
        (["submit", "-"], "\n \n", "holds no rollouts"),
        (["submit", "-", "--defaults", "{"], "{}", "--defaults: not JSON"),
        (["submit", "-", "--label", "x"], "{}", "write name=value"),
        (["submit", "-", "--group", "6"], "{}", "--group 6: write name=value"),
        (["submit", "/no/such/file"], "", "cannot read /no/such/file"),
        *((["mock-trainer", "--ports", ports], "", "write 8081-8084") for ports in ("", "x", "1-", "70000", "9-8")),
        *(([actor], "", "--redis") for actor in ("api", "worker", "flower")),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_command_is_named(pool: StubPool, command: list[str], stdin: str, message: str) -> None:
    done = run(*command, stdin=stdin)
    assert done.exit_code == 2
    assert message in re.sub(r"[│\s]+", " ", done.stderr)
    assert pool.requests == []


def test_a_rejection_lists_every_fault(pool: StubPool) -> None:
    faults = [{"path": f"rollouts[{index}].n", "message": "too large"} for index in range(3)]
    pool.on("POST", "/v1/batches", Answer(422, {"error": {"message": "no", "faults": faults, "total_faults": 5}}))
    done = run("submit", "-", stdin=json.dumps(ROLLOUT))
    assert done.exit_code == 1
    assert [line.strip() for line in done.stderr.splitlines()[1:]] == [
        "rollouts[0].n: too large",
        "rollouts[1].n: too large",
        "rollouts[2].n: too large",
        "… and 2 more",
    ]


def test_status(pool: StubPool) -> None:
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=status(labels={"run": EVIL})))
    done = run("status", BATCH)
    assert done.exit_code == 0
    assert re.search(r"rollouts +2: completed 2\n", done.stdout)
    assert re.search(r"alignment +exact 2\n", done.stdout)
    assert "[bold]x[/bold] \\x1b[31mred" in done.stdout
    assert "\x1b" not in done.stdout


def test_status_says_why_rollouts_did_not_complete(pool: StubPool) -> None:
    counts = {"failed": 3, "expired": 1, "completed": 1}
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=status(counts=counts)))
    columns = {
        "status": ["failed", "expired", "failed", "failed"],
        "finish_reason": ["error", "deadline", "error", "error"],
        "category": ["network_error", None, "network_error", "tool_error"],
        "message": ["no route", f"the trainer answered 503: {EVIL}", "no answer", None],
    }
    rows = {"batch_id": BATCH, "total": 5, "matched": 4, "created_ms": 0, "now_ms": 1, "next_cursor": None}
    pool.on("GET", f"/v1/batches/{BATCH}/rollouts", Answer(body={**rows, "columns": columns}))
    done = run("status", BATCH)
    assert done.exit_code == 0, done.stderr
    assert re.search(
        r"because +network_error: no route \(and 1 other messages\) \(2 rollouts\); expired: the trainer answered 503",
        done.stdout,
    )
    assert "tool_error (1 rollouts)" in done.stdout
    assert "\x1b" not in done.stdout
    assert "where=status%3Dfailed%2Cexpired" in pool.requests[-1].path
    told = json.loads(run("status", BATCH, "--json").stdout)
    assert told["reasons"]["network_error: no route (and 1 other messages)"] == 2
    assert told["counts"]["failed"] == 3


def test_status_says_which_versions_were_too_old(pool: StubPool) -> None:
    body = {**status(counts={"cancelled": 3}), "stale": {"dropped": 2}}
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=body))
    said = "sampled by version 10; the run is at 13, and version 11 is allowed"
    ends = {"status": ["cancelled"] * 3, "finish_reason": ["stale", "cancelled", "stale"]}
    columns = {**ends, "category": [None] * 3, "message": [said, None, said]}
    rows = {"batch_id": BATCH, "total": 3, "matched": 3, "created_ms": 0, "now_ms": 1, "next_cursor": None}
    pool.on("GET", f"/v1/batches/{BATCH}/rollouts", Answer(body={**rows, "columns": columns}))
    told = json.loads(run("status", BATCH, "--json").stdout)
    assert told["reasons"] == {f"stale: {said}": 2}
    assert "where=status%3Dcancelled" in pool.requests[-1].path


def test_watch_ends_with_the_batch(pool: StubPool) -> None:
    running = status(state="running")
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=running), Answer(body=status()))
    done = run("watch", BATCH)
    assert done.exit_code == 0
    assert "complete" in done.stdout
    assert len(pool.requests) == 2


def test_show_prints_text_with_one(pool: StubPool) -> None:
    from rolloutpool_common.rendering import load_tokenizer

    ids = load_tokenizer("rolloutpool/tiny").encode("The answer is 42.")
    sample = {
        "prompt_ids": [],
        "response_ids": ids,
        "response_mask": [1] * len(ids),
        "response_logprobs": [-1.0] * len(ids),
        "segments": [],
    }
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view(result=result(0, samples=[sample]))))
    done = run("show", "r0", "--tokenizer", "rolloutpool/tiny")
    assert "⟦The answer is 42.⟧" in done.stdout


def test_show_says_why_it_failed_and_obeys_no_model(pool: StubPool) -> None:
    failed = result(0, status="failed", finish_reason="error", failure=FAILURE, samples=[], alignment=None)
    failed["messages"][1]["content"] = EVIL
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view(status="failed", result=failed)))
    done = run("show", "r0")
    assert "infra at trainer: no answer" in done.stdout
    assert "[bold]x[/bold] \\x1b[31mred\\x1b[0m \\x9b2J\\rover" in done.stdout
    assert "\x1b" not in done.stdout


def test_show_of_a_running_rollout(pool: StubPool) -> None:
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view(status="running", result=None)))
    done = run("show", "r0")
    assert done.exit_code == 0
    assert re.search(r"status +running", done.stdout)


def test_show_marks_forks_drift_and_turns(pool: StubPool) -> None:
    document = forked(labels={EVIL: EVIL}, warnings=[EVIL]).model_dump(mode="json")
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view(result=document)))
    done = run("show", "r0")
    assert re.search(r"tokens +0 sampled; trained 42 of 96 in 2 samples\n", done.stdout)
    assert re.search(r" 2 +20 +8 +12 +stop +sampled +1 +none +≠ thinking_stripped", done.stdout)
    assert "fork of sample 1: thinking_stripped" in done.stdout
    assert done.stdout.count("[bold]x[/bold] \\x1b[31mred") == 3
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"attempt": 2, "spans": {"queued_ms": 15_000, "total_ms": 40_404, "llm_ms": 42_773, "tools_ms": 530}},
            r"40,404 ms: model 30,001, tools 30, tokenizer 0, other 10,373; 15,000 before attempt 2, queued and in "
            r"earlier attempts \(model 12,772, tools 500\)",
        ),
        (
            {"spans": {"total_ms": 50_000, "llm_ms": 42_773, "tools_ms": 530, "loop_ms": 6000, "redis_ms": 47}},
            r"50,000 ms: model 42,773, tools 530, tokenizer 0, worker's own work 650, waited for the worker 6,000, "
            r"waited for Redis 47; queued 0 before",
        ),
        (
            {"spans": {"total_ms": 30_000, "llm_ms": 42_773, "tools_ms": 530, "loop_ms": 0, "redis_ms": 0}},
            r"30,000 ms: model 42,773, tools 530, .* \(several at once\); queued 0 before",
        ),
    ],
    ids=["retried", "split", "at once"],
)
def test_show_says_where_the_time_of_the_last_attempt_went(pool: StubPool, changes: dict[str, Any], said: str) -> None:
    document = forked().model_dump(mode="json")
    tools = [{"name": name, "ms": ms, "ok": True} for name, ms in (("add", 500), ("sub", 20))]
    first, second = {"start_ms": 1000, "llm_ms": 12_772, "tools": tools}, {"start_ms": 15_001, "llm_ms": 30_001}
    turns = [document["turns"][0] | first, document["turns"][0] | second]
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view(result={**document, "turns": turns, **changes})))
    shown = " ".join(run("show", "r0").stdout.split())
    assert re.search(said, shown)


def test_show_writes_a_page(pool: StubPool, tmp_path: Path) -> None:
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view()))
    file = tmp_path / "page.html"
    done = run("show", "r0", "--html", str(file))
    assert (done.exit_code, done.stdout) == (0, f"{file}\n")
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "tokens as ids; --tokenizer NAME shows their text" in page


def test_a_page_needs_a_rollout_that_has_ended(pool: StubPool, tmp_path: Path) -> None:
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view(status="running", result=None)))
    done = run("show", "r0", "--html", str(tmp_path / "page.html"))
    assert (done.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "is running; there is a page of it once it has ended" in done.stderr


def test_a_page_that_cannot_be_written_names_its_file(pool: StubPool, tmp_path: Path) -> None:
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view()))
    done = run("show", "r0", "--html", str(tmp_path / "no" / "page.html"))
    assert done.exit_code == 2
    assert "cannot write" in done.stderr


def test_show_says_when_the_tokenizer_is_another_one(pool: StubPool) -> None:
    pool.on("GET", "/v1/rollouts/r0", Answer(body=view(result=result(0, tokenizer={"tokenizer_sha256": "0" * 64}))))
    done = run("show", "r0", "--tokenizer", "rolloutpool/tiny")
    assert "the text may be wrong: tokenizer.json of rolloutpool/tiny is" in done.stderr
    assert "the worker's was 000000000000" in done.stderr


@pytest.mark.parametrize(
    ("identity", "path"), [(BATCH, f"/v1/batches/{BATCH}"), (f"{BATCH}-3", f"/v1/rollouts/{BATCH}-3")]
)
def test_cancel_takes_both_kinds(pool: StubPool, identity: str, path: str) -> None:
    pool.on("DELETE", path, Answer(body={}))
    done = run("cancel", identity)
    assert (done.exit_code, done.stdout) == (0, f"cancelled {identity}\n")


def test_cancel_says_that_it_was_not_submitted_yet(pool: StubPool) -> None:
    pool.on("DELETE", "/v1/rollouts/early", Answer(202, {"uid": None, "status": "cancelled"}))
    done = run("cancel", "early")
    assert (done.exit_code, done.stdout) == (
        0,
        "early was not submitted yet; if it comes within 10 minutes, it is cancelled\n",
    )


def test_an_error_is_one_line(pool: StubPool) -> None:
    pool.on("GET", "/v1/batches/nope", Answer(404, {"error": {"message": "unknown batch"}}))
    done = run("status", "nope")
    assert done.exit_code == 1
    assert done.stderr == f"error: GET {pool.url}/v1/batches/nope: 404, unknown batch\n"


def test_port_lists() -> None:
    assert _ports("8081-8083,9000") == [8081, 8082, 8083, 9000]


def test_workers_are_told_the_file_of_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, arguments: became.append(arguments))
    for name in ("ROLLOUTPOOL_REDIS_URL", "ROLLOUTPOOL_ENVIRONMENTS_FILE"):
        # What the command sets goes with the test.
        monkeypatch.setenv(name, "")
    run("worker", "--redis", "redis://h:1/0", "--environments", "there.toml", "--processes", "2")
    assert became[0][1:] == ["-m", "rolloutpool_worker", "--processes", "2"]
    assert os.environ["ROLLOUTPOOL_ENVIRONMENTS_FILE"] == "there.toml"


def test_workers_shows_all_of_them_and_those_without_work_too(pool: StubPool) -> None:
    busy, idle = worker(worker_id="busy", running=7), worker(worker_id="idle", running=0, alive=False)
    pool.on("GET", "/v1/workers", Answer(body={"workers": [busy, idle]}))
    lines = run("workers").stdout.splitlines()
    assert [re.findall(r"\b(?:busy|idle|alive|silent|7|0)\b", line) for line in lines[1:]] == [
        ["busy", "alive", "7"],
        ["idle", "silent", "0"],
    ]


def test_workers_says_that_there_is_none(pool: StubPool) -> None:
    pool.on("GET", "/v1/workers", Answer(body={"workers": []}))
    assert run("workers").stdout == "none\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_only_a_terminal_folds_a_table(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a person has set for a terminal does not count elsewhere.
    shown = Console(width=40, markup=False, force_terminal=terminal, color_system=None, soft_wrap=True)
    monkeypatch.setattr(console, "out", shown)
    console.table(("name", "words"), [(f"first\n{'x' * 300}", "many words " * 30), ("second", 7)], title="t" * 100)
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "x" in line or "many" in line]
    if terminal:
        assert max(map(len, lines)) <= 40
        assert len(rows) > 10
    else:
        (row,) = rows
        assert f"first\\n{'x' * 300}" in row
        assert "many words " * 29 in row
        assert lines[0].strip() == "t" * 100


def test_watch_in_a_file_is_the_end_alone(pool: StubPool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "x" * 200
    running, ended = (Answer(body=status(state=state, labels={"step": name})) for state in ("running", "complete"))
    pool.on("GET", f"/v1/batches/{BATCH}", running, ended)
    done = run("watch", BATCH)
    assert done.exit_code == 0
    assert re.findall(r"^state +(\w+)$", done.stdout, re.MULTILINE) == ["complete"]
    assert f"step={name}" in done.stdout.splitlines()[-1]


def test_the_demo_s_table_has_a_row_for_a_worker_without_rollouts(capsys: pytest.CaptureFixture[str]) -> None:
    done = FinishedRollout.model_validate({**forked().model_dump(), "cursor": "1"})
    _print_table([done], 1.0, _by_worker([done], ["idle", done.worker or ""]))
    rows = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\W*(1|2|3|all)\b", line)]
    assert [row.replace("│", " ").split()[:2] for row in rows] == [["1", "0"], ["2", "1"], ["all", "1"]]
