"""`rolloutpool view`: what it says, and how it fails. What it serves is tested with the server."""

import json
import socket
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tests.support.finished_rollouts import forked
from typer.testing import CliRunner, Result

from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer.cli import app, view
from rolloutpool_trainer.viewer.pool_relay import PoolRelay
from rolloutpool_trainer.viewer.server import ViewerServer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["view", *arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "results.jsonl"
    file.write_text(f"{forked().model_dump_json()}\nnonsense\n")
    return file


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody presses Ctrl-C as soon as it serves."""

    def interrupted(_: ViewerServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ViewerServer, "serve", interrupted)


def test_it_prints_the_address_and_what_it_left_out(path: Path) -> None:
    done = run(str(path))
    assert done.exit_code == 0
    assert done.stdout.startswith("http://127.0.0.1:")
    assert done.stdout.endswith("/ui\n")
    assert "1 rollouts of 1 batches" in done.stderr
    assert "1 lines are no results and are left out" in done.stderr


def test_with_json_it_prints_the_address_as_a_document(path: Path) -> None:
    document = json.loads(run(str(path), "--json").stdout)
    schema = json.loads((Path(__file__).parents[4] / "docs" / "schemas" / "view.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert document["address"].endswith("/ui")


def test_a_browser_is_opened_on_demand(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    done = run(str(path), "--open")
    assert opened == [done.stdout.strip()]


def test_errors_are_one_line(path: Path, tmp_path: Path) -> None:
    done = run(str(tmp_path / "missing"))
    assert done.exit_code == 1
    assert "cannot read" in done.stderr
    (tmp_path / "other").write_text("nonsense")
    assert "neither a result per line nor JSON" in run(str(tmp_path / "other")).stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(str(path), "--port", str(taken.getsockname()[1]))
    assert done.exit_code == 2
    assert "cannot listen on port" in done.stderr


@pytest.mark.parametrize("url", ["http://pool:9000", "http://pool:9000/", "http://pool:9000/ui#/batch/b1"])
def test_an_address_is_that_of_a_pool(url: str) -> None:
    relay = view._source(url, "rpk_key")
    assert isinstance(relay, PoolRelay)
    assert relay._client.base_url == "http://pool:9000"
    relay.close()


def test_a_tokenizer_says_what_ids_read_and_whether_it_may_be_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    answer = view._pieces(TINY)
    ours = load_tokenizer(TINY)
    found = TokenPieces.model_validate_json(answer(ours.fingerprint.tokenizer_sha256))
    ids = list(ours.encode("über 日本 🙂"))
    assert found.read(ids) == "über 日本 🙂"
    assert "may be wrong" not in capsys.readouterr().err
    assert answer("another") == answer("another")
    assert capsys.readouterr().err.count("may be wrong") == 1
