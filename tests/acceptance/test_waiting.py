"""Work that waits says why: a trainer that answers 503 with a reason, until it is back."""

import json
import subprocess
import sys
from typing import Any

from tests.support.threaded_server import QuietHandler, serving
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


class Busy(QuietHandler):
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


def status(client: RolloutClient, batch_id: str) -> BatchStatus:
    return client.batch(batch_id).status()


def at_trainers(client: RolloutClient, batch_id: str) -> list[Waiting]:
    """What the batch's rollouts wait for, without what the pool lacks while it is busy."""
    return [waiting for waiting in status(client, batch_id).waiting if waiting.endpoint]


def test_a_busy_trainer_is_named_while_it_is_busy(pool: LocalPool, tokenizer: ChatTokenizer) -> None:
    with pool.client() as client:
        with serving(Busy) as port:
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
    lines = [line for log in pool.state.logs.rglob("*.log") for line in log.read_text().splitlines() if REASON in line]
    # Besides these, each return of a rollout to the queue has a line, which a slow machine makes happen here.
    assert 1 <= len([line for line in lines if '"level": "warning"' in line]) <= 4
    assert not any("Calculate" in line for line in lines)
