"""The server on this machine: who does not know the address gets nothing, and pages run under the strict policy."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.finished_rollouts import forked
from tests.support.stub_pool import Answer, stub_pool

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.viewer.assets import PAGE, POLICY, viewer_files
from rolloutpool_trainer.errors import UnreadableResults
from rolloutpool_trainer.viewer.pool_relay import PoolRelay
from rolloutpool_trainer.viewer.result_file import ResultFile
from rolloutpool_trainer.viewer.server import ViewerServer

UID = f"b{'0' * 32}-0"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "results.jsonl"
    file.write_text(forked().model_dump_json() + "\n")
    return file


def serve(server: ViewerServer) -> Iterator[ViewerServer]:
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.stop()
    thread.join()
    server.close()


@pytest.fixture
def server(path: Path) -> Iterator[ViewerServer]:
    pieces = {"known": b'{"pieces": []}'}
    yield from serve(ViewerServer(ResultFile(path), pieces=pieces.get))


def test_pages_and_answers_are_beside_each_other(server: ViewerServer) -> None:
    base = server.address.removesuffix("ui")
    with httpx.Client(trust_env=False) as client:
        for name, (content, kind) in viewer_files().items():
            answer = client.get(f"{server.address}/{name}")
            # All that differs: the page is told that this server searches the file.
            searches = b'<div id="viewer" data-search="file">'
            assert answer.content.count(searches) == (name == PAGE)
            served = answer.content.replace(searches, b'<div id="viewer">')
            assert (answer.status_code, served, answer.headers["content-type"]) == (200, content, kind)
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert client.get(server.address).text.startswith("<!doctype html>")
        view = client.get(f"{base}v1/rollouts/{UID}")
        assert view.json()["result"]["uid"] == UID
        assert view.headers["cache-control"] == "no-store"
        assert client.get(f"{base}v1/tokenizers/known/pieces").json() == {"pieces": []}
        assert client.get(f"{base}v1/tokenizers/other/pieces").status_code == 404
        assert client.post(f"{base}v1/batches").status_code == 501


def test_a_file_is_searched_beside_its_pages(server: ViewerServer, path: Path) -> None:
    search = f"{server.address.removesuffix('ui')}search"
    with httpx.Client(trust_env=False) as client:
        with path.open("a") as file:
            said = [Message(role="user", content="where is the Nädel?")]
            file.write(forked(messages=said).model_copy(update={"uid": f"b{'0' * 32}-1"}).model_dump_json() + "\n")
        answer = client.get(search, params={"q": "NÄDEL"})
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        assert [(match["uid"], match["found"]) for match in answer.json()["matches"]] == [(f"b{'0' * 32}-1", "Nädel")]
        assert client.get(search).status_code == 422
        path.unlink()
        assert "cannot read" in client.get(search, params={"q": "x"}).json()["error"]["message"]


def test_while_a_search_runs_others_are_answered(server: ViewerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    searching, answered = threading.Event(), threading.Event()

    def slow(_file: ResultFile, _line: object, _model: object) -> None:
        searching.set()
        assert answered.wait(20)
        raise UnreadableResults("gone")

    monkeypatch.setattr(ResultFile, "read", slow)
    base = server.address.removesuffix("ui")
    said: list[int] = []
    asking = threading.Thread(
        target=lambda: said.append(httpx.get(f"{base}search?q=x", trust_env=False, timeout=30).status_code)
    )
    asking.start()
    assert searching.wait(20)
    assert httpx.get(f"{base}v1/rollouts/{UID}", trust_env=False).status_code == 200
    answered.set()
    asking.join()
    assert said == [500]


@pytest.mark.parametrize(
    "asked",
    ["/", "/ui", "/search?q=x", "/v1/batches", "/x/v1/batches", "/ui/app.js", "/..%2f", "//", f"/v1/rollouts/{UID}"],
)
def test_without_the_secret_there_is_nothing(server: ViewerServer, asked: str) -> None:
    origin = server.address.rpartition("/")[0].rpartition("/")[0]
    assert httpx.get(f"{origin}{asked}", trust_env=False).status_code == 404


def test_an_address_is_new_at_each_start_and_listens_here_only(server: ViewerServer, path: Path) -> None:
    other = ViewerServer(ResultFile(path))
    secrets = [one.address.split("/")[3] for one in (server, other)]
    assert secrets[0] != secrets[1]
    assert min(map(len, secrets)) >= 24
    assert other.address.startswith("http://127.0.0.1:")
    port = int(other.address.split(":")[2].split("/")[0])
    with pytest.raises(OSError, match="in use"):
        ViewerServer(ResultFile(path), port=port)
    other.close()


def test_callers_that_send_nonsense_hang_or_go_do_not_stop_it(server: ViewerServer) -> None:
    port = int(server.address.split(":")[2].split("/")[0])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for nonsense in (b"\x00" * 1000, b"GET " + b"/" * 100_000 + b"\r\n\r\n", b"GET /ui HTTP/9.9\r\n\r\n", b"\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as rude:
            rude.sendall(nonsense)
    assert httpx.get(server.address, trust_env=False).status_code == 200
    for connection in silent:
        connection.close()


def test_a_file_that_went_away_is_an_error_that_says_so(server: ViewerServer, path: Path) -> None:
    path.unlink()
    answer = httpx.get(f"{server.address.removesuffix('ui')}v1/batches", trust_env=False)
    assert answer.status_code == 500
    assert "cannot read" in answer.json()["error"]["message"]


def test_in_front_of_a_pool_its_answers_are_handed_on() -> None:
    with stub_pool() as pool:
        pool.on("GET", "/v1/batches", Answer(200, {"batches": [], "next_cursor": None}))
        pool.on("GET", "/v1/tokenizers/a/pieces", Answer(200, {"pieces": ["theirs"]}))
        for server in serve(ViewerServer(PoolRelay(pool.url, "rpk_ours"), pieces={"b": b'["ours"]'}.get)):
            base = server.address.removesuffix("ui")
            with httpx.Client(trust_env=False) as client:
                assert client.get(f"{base}v1/batches?limit=200").json() == {"batches": [], "next_cursor": None}
                assert client.get(f"{base}v1/tokenizers/a/pieces").json() == {"pieces": ["theirs"]}
                assert client.get(f"{base}v1/tokenizers/b/pieces").json() == ["ours"]
                assert client.get(f"{base}v1/workers").status_code == 404
                # A pool's texts are searched by the page alone.
                assert client.get(f"{base}search?q=x").status_code == 404
                assert b"data-search" not in client.get(server.address).content
        assert pool.requests[0].path == "/v1/batches?limit=200"
        assert json.dumps(pool.requests[0].headers).count("rpk_ours") == 1
