"""The same kill for verifiers' env server and for a pool: kill -9 of one of two workers, in the middle of rollouts.

    python -m benchmarks.peers.kills [--quick]

Both have two worker processes and the same scripted policy over HTTP, which answers after half a second: twice with a
call of the calculator, then in words. Then one worker is killed. Counted is which rollouts come back within a minute,
also of those that are sent after the kill, and how many turns were asked more than once. Both are used as they are
shipped; verifiers' server says of itself that it does not start a worker again.
"""

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from benchmarks.local_pool import local_pool
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.counting_engine import JsonHandler
from benchmarks.peers.environment import NotToBeHad, prepare
from benchmarks.processes import ROOT
from benchmarks.report import Row, emit, parser

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

LATENCY = 0.5
BUSY_SECONDS = 1.5
PATIENCE_SECONDS = 60.0
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


@contextmanager
def chat_policy() -> Iterator[tuple[str, Counter[tuple[str, int]]]]:
    """Serves chat completions; counts each turn that it was asked."""
    asked: Counter[tuple[str, int]] = Counter()

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = self.body()
            turns = sum(message["role"] == "assistant" for message in body["messages"])
            asked[str(body.get("rollout_id")), turns] += 1
            time.sleep(LATENCY)
            message: dict[str, Any] = {"role": "assistant", "content": "It is 3."}
            if turns < 2:
                message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turns < 2 else "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            about = {"id": "x", "object": "chat.completion", "created": 0, "model": "default"}
            self.send({**about, "choices": [choice], "usage": usage})

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that is killed leaves in the middle of an answer."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()


def verifiers(rollouts: int, later: int) -> Row:
    """Returns the row of verifiers' env server, or why there is none."""
    (peer,) = [one for one in PEERS if one.environment == "verifiers"][:1]
    name = "verifiers' env server"
    try:
        environment = prepare(peer)
    except NotToBeHad as error:
        return {"system": f"{name}: {error}"}
    with chat_policy() as (url, asked):
        adapters = str(ROOT / "benchmarks" / "peers" / "adapters")
        done = subprocess.run(
            [
                environment.python,
                *("-m", "benchmarks.peers.adapters.killed_calculator"),
                *(url, str(rollouts), str(later), str(PATIENCE_SECONDS)),
            ],
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}:{adapters}", "PATH": "/usr/bin:/bin", "HOME": "/tmp", "NO_KEY": "none"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return {"system": f"{name}: {done.stderr.strip().splitlines()[-1][:120]}"}
    found: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return _row(name, rollouts, later, found, sum(count > 1 for count in asked.values()))


def ours(rollouts: int, later: int) -> Row:
    """Returns the row of a pool."""
    tokenizer = load_tokenizer(TINY)
    app = callback_app(ScriptedPolicy(tokenizer, latency=LATENCY, turns=3), tokenizer=tokenizer)
    with local_pool(workers=2) as pool, pool.client() as client, serve_callback(app, [0]) as served:

        def submit(count: int) -> Any:
            prompts = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(count)]
            return client.submit(prompts, defaults={"tokenizer_name": TINY}, trainer=served.url)

        def ended(batch: Any) -> tuple[int, int]:
            try:
                status = batch.wait(timeout=PATIENCE_SECONDS)
            except TimeoutError:
                status = batch.status()
            complete = status.counts[RolloutStatus.COMPLETED]
            return complete, status.total - sum(status.counts[one] for one in RolloutStatus if one.terminal)

        first = submit(rollouts)
        time.sleep(BUSY_SECONDS)
        pool.kill_worker(0)
        complete, hang = ended(first)
        later_complete, later_hang = ended(submit(later))
    found = {"complete": complete, "hang": hang, "later, complete": later_complete, "later, hang": later_hang}
    return _row("rolloutpool", rollouts, later, found, len(app.sampling_log.repeated()))


def _row(system: str, rollouts: int, later: int, found: dict[str, int], repeated: int) -> Row:
    return {
        "system": system,
        "in flight at the kill": rollouts,
        "complete": found["complete"],
        "no answer": found["hang"],
        "sent afterwards": later,
        "complete then": found["later, complete"],
        "no answer then": found["later, hang"],
        "turns asked twice": repeated,
    }


def main() -> None:
    """Prints a table."""
    chosen = parser("kills", __doc__).parse_args()
    rollouts, later = (20, 10) if chosen.quick else (100, 50)
    emit(
        "kills",
        [ours(rollouts, later), verifiers(rollouts, later)],
        chosen,
        title="One of two workers is killed",
        measures=f"Rollouts that came back within {PATIENCE_SECONDS:g} s, and turns that were asked more than once.",
        leaves_out="How fast, and kills of the server's own process, of Redis and of the trainer.",
    )


if __name__ == "__main__":
    main()
