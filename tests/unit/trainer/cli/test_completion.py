"""Ids that a shell completes, as bash asks for them; a pool that is away completes nothing and says nothing."""

import socket
from pathlib import Path

import pytest
from tests.support.answered_pool import SUMMARY
from tests.support.api_documents import BATCH
from tests.support.stub_pool import Answer, StubPool, stub_pool
from typer.testing import CliRunner

from rolloutpool_trainer.cli import app, completion

OTHER = "b" + "1" * 32


def complete(words: str, url: str, **environment: str) -> list[str]:
    """What bash would offer for the last of these words."""
    asked = {
        "_ROLLOUTPOOL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"rolloutpool {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        "ROLLOUTPOOL_URL": url,
        **environment,
    }
    done = CliRunner().invoke(app, [], env=asked, prog_name="rolloutpool")
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def lay_out(pool: StubPool) -> None:
    batches = [{**SUMMARY, "run": "ppo-8"}, {**SUMMARY, "batch_id": OTHER, "run": "ppo-7"}]
    pool.on("GET", "/v1/batches", Answer(body={"batches": batches, "next_cursor": None}))
    columns = {
        "uid": [f"{BATCH}-{n}" for n in range(12)],
        "status": ["queued"] * 12,
        "rollout_id": ["mine"] * 12,
    }
    table = {"batch_id": BATCH, "total": 12, "matched": 12, "created_ms": 0, "now_ms": 1, "next_cursor": None}
    pool.on("GET", f"/v1/batches/{BATCH}/rollouts", Answer(body={**table, "columns": columns}))
    pool.on("GET", "/v1/dead-letters", Answer(body={"rollouts": [f"{BATCH}-3"], "pushes": []}))


def test_batches_rollouts_and_dead_ones() -> None:
    with stub_pool() as pool:
        lay_out(pool)
        for command in ("status", "watch", "results", "groups", "purge", "show", "cancel", "open", "fork", "regrade"):
            assert complete(f"{command} b", pool.url) == [BATCH, OTHER], command
        assert complete("status b1", pool.url) == [OTHER]
        assert complete(f"show {BATCH}-1", pool.url) == [f"{BATCH}-{n}" for n in (1, 10, 11)]
        assert complete(f"open {BATCH}-9", pool.url) == [f"{BATCH}-9"]
        assert complete("requeue b", pool.url) == [f"{BATCH}-3"]
        for command in ("run p", "announce p", "pause p", "resume p", "batches --run p"):
            assert complete(command, pool.url) == ["ppo-8", "ppo-7"], command


def test_the_pool_of_the_command_line_is_asked_with_its_key() -> None:
    with stub_pool() as pool:
        lay_out(pool)
        words = f"status --url {pool.url} --api-key secret b"
        assert complete(words, "http://127.0.0.1:1") == [BATCH, OTHER]
        assert pool.requests[-1].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("body", [{}, [], "x", {"batches": [{}]}, {"error": {"message": "no"}}])
@pytest.mark.parametrize("status", [200, 401, 500])
def test_nonsense_completes_nothing(body: object, status: int) -> None:
    with stub_pool() as pool:
        pool.on("GET", "/v1/batches", Answer(status, body))
        assert complete("status b", pool.url) == []


def test_a_pool_that_is_away_or_silent_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "SECONDS", 0.2)
    assert complete("status b", "http://127.0.0.1:1") == []
    assert complete("status b", "no url at all") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert complete("status b", f"http://127.0.0.1:{silent.getsockname()[1]}") == []


def test_log_files(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("api.log", "worker-0.log", "worker-1.log", "other.txt"):
        (tmp_path / "logs" / name).touch()
    url = "http://127.0.0.1:1"
    assert complete("logs w", url, ROLLOUTPOOL_STATE=str(tmp_path)) == ["worker-0", "worker-1"]
    assert complete("logs w", url, ROLLOUTPOOL_STATE=str(tmp_path / "none")) == []
