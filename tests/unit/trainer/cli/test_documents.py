"""`--json`: every command has it and a schema, and what it prints is as the schema says."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.answered_pool import answer_all
from tests.support.api_documents import BATCH
from tests.support.printed_documents import SCHEMAS, read_document
from tests.support.stub_pool import Answer, StubPool
from typer.testing import CliRunner, Result

from rolloutpool_trainer.cli import app
from rolloutpool_trainer.cli.documents import DOCUMENTS, LOG_LINES, json_schemas

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ACTORS = ("api", "worker", "flower", "door", "runner")
"""They become the actor, and print nothing but its log."""
ELSEWHERE = {"agent", "check-tokenizer", "conformance", "up", "demo", "mock-trainer", "replay", "view"}
"""Their documents are checked where these commands are tested with what they need."""


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def test_every_command_has_the_option_and_a_schema() -> None:
    for name, command in COMMANDS.items():
        assert any("--json" in parameter.opts for parameter in command.params), name
        assert name in {*DOCUMENTS, *ACTORS, "check-tokenizer"}, name
    files = {path.stem for path in SCHEMAS.glob("*.json")}
    assert files == {*DOCUMENTS, LOG_LINES, "check-tokenizer"}


def test_the_published_schemas_are_current() -> None:
    """`make generate` writes them."""
    for name, schema in json_schemas().items():
        assert json.loads((SCHEMAS / f"{name}.json").read_text()) == schema, name


CALLS: dict[str, tuple[list[str], int | None]] = {
    "submit": (["-"], None),
    "status": ([BATCH], None),
    "watch": ([BATCH], 1),
    "results": ([BATCH], 2),
    "batches": ([], None),
    "groups": ([BATCH], None),
    "purge": ([BATCH, "--yes"], None),
    "purge-owner": (["ann", "--yes"], None),
    "show": ([f"{BATCH}-0"], None),
    "fork": ([f"{BATCH}-0", "--turn", "1", "--trainer", "http://h:1"], None),
    "cancel": ([BATCH], None),
    "open": ([BATCH, "--print"], None),
    "doctor": ([], None),
    "workers": ([], None),
    "preflight": (["http://h:1"], None),
    "dead-letters": ([], None),
    "requeue": ([f"{BATCH}-0"], None),
    "regrade": ([BATCH, "--grader", "exact", "--options", '{"answer": 4}'], None),
    "make-key": (["ann"], None),
    "make-secrets-key": ([], None),
    "logs": ([], 2),
    "run": (["job7"], None),
    "announce": (["job7", "13"], None),
    "pause": (["job7"], None),
    "resume": (["job7"], None),
}
"""Arguments of each command, and how many lines it prints where these are documents of their own."""


def test_no_command_is_left_out() -> None:
    assert {*CALLS, *ELSEWHERE, *ACTORS} >= set(COMMANDS)


@pytest.mark.parametrize("command", CALLS)
def test_what_is_printed_is_what_the_schema_says(
    pool: StubPool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_all(pool)
    monkeypatch.setenv("ROLLOUTPOOL_STATE", str(tmp_path))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "api.log").write_text('{"event": "x", "timestamp": "2026"}\nplain \x1b[31m\n')
    arguments, lines = CALLS[command]
    done = run(command, *arguments, "--json", stdin='{"messages": []}')
    assert done.exit_code == 0, done.output
    read_document(command, done.stdout, lines=lines)


def test_submit_waits_and_then_prints_one_document(pool: StubPool) -> None:
    answer_all(pool)
    done = run("submit", "-", "--wait", "--json", stdin='{"messages": []}')
    document = read_document("submit", done.stdout)
    assert (document["ended"], document["completed"], document["reasons"]) == (2, 2, {})


def test_what_fails_still_prints_its_document(pool: StubPool) -> None:
    pool.on("GET", "/health", Answer(body={"status": "healthy"}))
    pool.on("GET", "/readyz", Answer(503, {"error": {"message": "not ready", "reasons": ["Redis"]}}))
    pool.on("GET", "/v1/workers", Answer(body={"workers": []}))
    done = run("doctor", "--json")
    assert done.exit_code == 1
    assert read_document("doctor", done.stdout)["ok"] is False


def test_an_error_is_no_document(pool: StubPool) -> None:
    done = run("status", BATCH, "--json")
    assert (done.exit_code, done.stdout) == (1, "")


@pytest.mark.parametrize("command", ACTORS)
@pytest.mark.parametrize(("option", "form"), [(["--json"], "json"), ([], None)])
def test_actors_log_json(command: str, option: list[str], form: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def become(_: str, __: list[str]) -> None:
        seen["form"] = os.environ.get("ROLLOUTPOOL_LOG_FORMAT")

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "execv", become)
    run(command, "--redis", "redis://127.0.0.1:1", *option)
    assert seen == {"form": form}
