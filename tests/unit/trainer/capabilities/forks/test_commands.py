"""`rolloutpool fork`."""

import json

import pytest
from tests.support.api_documents import BATCH, accepted
from tests.support.stub_pool import Answer, StubPool
from typer.testing import CliRunner

from rolloutpool_trainer.cli import app


def test_fork_sends_what_was_given(pool: StubPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_URL", pool.url)
    pool.on("POST", "/v1/rollouts/r%2F1/fork", Answer(202, accepted()))
    options = ["--options", '{"max_turns": 9}', "-n", "2", "--seed", "5", "--callback-key", "secret"]
    done = CliRunner().invoke(app, ["fork", "r/1", "--turn", "3", "--trainer", "http://h:1", *options])
    assert (done.exit_code, done.stdout) == (0, f"{BATCH}\n"), done.output
    assert pool.requests[0].body == {
        "turn": 3,
        "n": 2,
        "server_url": "http://h:1",
        "seed": 5,
        "max_turns": 9,
        "callback_api_key": "secret",
    }
    assert pool.requests[0].headers["Idempotency-Key"]
    several = ["--trainer", "http://h:1", "--trainer", "http://h:2", "--json"]
    done = CliRunner().invoke(app, ["fork", "r/1", "--turn", "3", *several])
    assert json.loads(done.stdout)["batch_id"] == BATCH
    assert pool.requests[1].body["trainer"] == {"server_urls": ["http://h:1", "http://h:2"]}
    wrong = CliRunner().invoke(app, ["fork", "r/1", "--turn", "3", "--trainer", "http://h:1", "--options", "7"])
    assert wrong.exit_code == 2
