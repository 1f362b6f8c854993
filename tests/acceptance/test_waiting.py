"""Work that waits says why: a trainer that answers 503 with a reason, one whose port is closed, and their recovery."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import BatchStatus
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

REASON = "weights of step 12 are being loaded"
DEFAULTS = {"tokenizer_name": TINY, "idempotent": True}
ITEMS: list[dict[str, Any]] = [{"messages": [{"role": "user", "content": f"Calculate 15 + {i}"}]} for i in range(16)]


class Busy(BaseHTTPRequestHandler):
    """Answers each call with 503, says why, and says the whole request as well."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = self.rfile.read(int(self.headers["Content-Length"])).decode()
        body = json.dumps({"error": {"message": REASON}, "request": request}).encode()
        self.send_response(503)
        # By this it is known for a policy server. What other servers say is shown to nobody.
        self.send_header("X-Turn-Key", self.headers["Idempotency-Key"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing on stderr."""


@contextmanager
def busy_trainer() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def logged(pool: LocalPool) -> tuple[LocalPool, Path]:
    """The pool, and where its logs are. Two workers write a line each."""
    return pool, pool.state.logs


def port_of(server: ThreadingHTTPServer) -> int:
    return int(server.server_address[1])


def status(client: RolloutClient, batch_id: str) -> BatchStatus:
    return client.batch(batch_id).status()


def at_trainers(client: RolloutClient, batch_id: str) -> list[Waiting]:
    """What the batch's rollouts wait for, without what the pool lacks while it is busy."""
    return [waiting for waiting in status(client, batch_id).waiting if waiting.endpoint]


def all_wait(client: RolloutClient, batch_id: str, url: str) -> bool:
    views = [client.get_rollout(f"{batch_id}-{i}") for i in range(len(ITEMS))]
    return all(view.waiting is not None and view.waiting.endpoint == url for view in views)


def test_a_busy_trainer_is_named_while_it_is_busy(logged: tuple[LocalPool, Path], tokenizer: ChatTokenizer) -> None:
    pool, state = logged
    with pool.client() as client:
        with busy_trainer() as server:
            port = port_of(server)
            batch = client.submit(ITEMS, defaults=DEFAULTS, trainer=f"http://127.0.0.1:{port}")
            eventually(lambda: at_trainers(client, batch.batch_id), seconds=30)
            (waiting,) = at_trainers(client, batch.batch_id)
            command = [sys.executable, "-c", "from rolloutpool_trainer.cli import app; app()", "status", batch.batch_id]
            told = subprocess.run([*command, "--url", pool.url], capture_output=True, text=True, check=True)
        assert (waiting.waits_for, waiting.status) == ("trainer", 503)
        assert waiting.endpoint == f"http://127.0.0.1:{port}"
        assert waiting.message.endswith(f"the trainer answered 503: {REASON}")
        assert "Calculate" not in waiting.model_dump_json()
        assert f"waits for http://127.0.0.1:{port}" in told.stdout
        assert REASON in told.stdout
        # The trainer comes back on the same port.
        app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url)
        with serve_callback(app, [port]):
            results = list(batch.results())
        assert {result.status for result in results} == {RolloutStatus.COMPLETED}
        assert {result.waited_for for result in results} == {None}
        assert status(client, batch.batch_id).waiting == []
    lines = [line for log in state.rglob("*.log") for line in log.read_text().splitlines() if REASON in line]
    # Besides these, each return of a rollout to the queue has a line, which a slow machine makes happen here.
    assert 1 <= len([line for line in lines if '"level": "warning"' in line]) <= 4
    assert not any("Calculate" in line for line in lines)


@pytest.mark.slow
def test_what_expires_and_what_is_cancelled_says_what_it_waited_for(logged: tuple[LocalPool, Path]) -> None:
    pool, _ = logged
    with pool.client() as client, busy_trainer() as server:
        url = f"http://127.0.0.1:{port_of(server)}"
        expiring = client.submit(ITEMS, defaults={**DEFAULTS, "deadline_seconds": 20}, trainer=url)
        cancelled = client.submit(ITEMS, defaults=DEFAULTS, trainer=url)
        for batch in (expiring, cancelled):
            eventually(partial(all_wait, client, batch.batch_id, url), seconds=30)
        cancelled.cancel()
        for batch, ended in ((expiring, RolloutStatus.EXPIRED), (cancelled, RolloutStatus.CANCELLED)):
            results = list(batch.results())
            assert {result.status for result in results} == {ended}
            for result in results:
                assert result.waited_for is not None, result
                assert (result.waited_for.endpoint, result.waited_for.status) == (url, 503)
                assert REASON in result.waited_for.message


def test_a_closed_port_is_named(logged: tuple[LocalPool, Path]) -> None:
    pool, _ = logged
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pool.client() as client:
            batch = client.submit(ITEMS, defaults=DEFAULTS, trainer=url)
            eventually(
                lambda: [w for w in status(client, batch.batch_id).waiting if w.waits_for == "trainer_port"], seconds=40
            )
            batch.cancel()
            results = list(batch.results())
    waited = [result.waited_for for result in results if result.waited_for is not None and result.waited_for.endpoint]
    assert {waiting.endpoint for waiting in waited} == {url}
    # Those that met it before it was taken out say what their own call met.
    assert all("refused" in waiting.message for waiting in waited if waiting.waits_for == "trainer_port")
