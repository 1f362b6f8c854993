"""The same kill for OpenEnv's capture proxy and for a pool's door: kill -9 while programs call their model through it.

    python -m benchmarks.peers.captures [--quick]

1. Programs that nobody changed make four calls each through an address that they were given. A call that is cut or
   refused with a status from 500 on is made again for 30 s, as good SDKs do; another refusal ends the program.
2. While each is in its calls, the process that captures is killed. It is started again at once: OpenEnv's by this
   script, with the same command and port; the door by the pool's own supervisor.
3. Counted is which programs came to their end, and of which all four calls are there to train on: exported by OpenEnv,
   or samples of a completed rollout.

Both call a scripted policy that answers after half a second and names the ids of prompt and answer, OpenEnv's as vLLM
does with `return_token_ids`.
"""

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import kill
from typing import Any

import httpx
from benchmarks.cpu import Usage
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.counting_engine import free_port
from benchmarks.peers.environment import NotToBeHad, prepare
from benchmarks.peers.openai_form import Form
from benchmarks.processes import serving
from benchmarks.report import Row, emit, parser

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

CALLS = 4
LATENCY = 0.5
BUSY_SECONDS = 1.2
PATIENCE_SECONDS = 30.0
OPENENV = Peer(
    name="OpenEnv's capture",
    gives_back="ids, masks, logprobs",
    exact="as the engine says",
    durable="a dict in the proxy's memory",
    adapter="",
    environment="openenv",
    form=next(iter(Form)),
)


def program(url: str, key: str) -> bool:
    """Makes all calls; returns whether all were answered."""
    messages = [{"role": "user", "content": "Count on."}]
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=60) as http:
        for _ in range(CALLS):
            end = time.monotonic() + PATIENCE_SECONDS
            while (answer := _asked(http, messages)) is None:
                if time.monotonic() > end:
                    return False
                time.sleep(0.5)
            if answer.is_error:
                return False
            said = answer.json()["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    return True


def _asked(http: httpx.Client, messages: list[dict[str, str]]) -> httpx.Response | None:
    try:
        answer = http.post("/v1/chat/completions", json={"model": "default", "messages": messages, "max_tokens": 64})
    except httpx.TransportError:
        return None
    return None if answer.status_code >= 500 else answer


def _killed(addresses: Sequence[tuple[str, str]], hurt: Any) -> int:
    """Runs the programs and the kill; returns how many came to their end."""
    with ThreadPoolExecutor(len(addresses)) as threads:
        running = [threads.submit(program, *address) for address in addresses]
        time.sleep(BUSY_SECONDS)
        hurt()
        return sum(one.result() for one in running)


def captures(sessions: int) -> list[Row]:
    """Returns a row for each."""
    return [_ours(sessions), _theirs(sessions)]


def _ours(sessions: int) -> Row:
    tokenizer = load_tokenizer(TINY)
    policy = ScriptedPolicy(tokenizer, latency=LATENCY, turns=CALLS)
    app = callback_app(policy, tokenizer=tokenizer)
    with (
        LocalPool(1, flower=False, door=True, tokenizers=[TINY]) as pool,
        pool.client() as client,
        serve_callback(app, [0]) as served,
    ):
        prompt = {"messages": [{"role": "user", "content": "Count on."}]}
        options = {"tokenizer_name": TINY, "harness": {"external": True}}
        batch = client.submit([prompt] * sessions, defaults=options, trainer=served.urls)
        found = [batch.session(index) for index in range(sessions)]

        def hurt() -> None:
            (door,) = [pid for pid, role in Usage().by_process if role == "door"]
            kill(door, signal.SIGKILL)

        ended = _killed([(one.url, one.key) for one in found], hurt)
        for index in range(sessions):
            batch.end_session(index, reward=1.0)
        whole = sum(
            result.status == "completed" and result.num_llm_calls == CALLS for result in batch.results(timeout=60)
        )
    return _row("rolloutpool's door", sessions, ended, whole)


def _theirs(sessions: int) -> Row:
    try:
        python = prepare(OPENENV).python
    except NotToBeHad as error:
        return {"system": f"{OPENENV.name}: {error}"}
    with serving("benchmarks.peers.counting_engine", str(LATENCY)) as engine, _proxy(python, engine) as proxy:
        keys = [proxy.create() for _ in range(sessions)]
        ended = _killed([(proxy.url, key) for key in keys], proxy.restart)
        whole = sum(proxy.calls(key) == CALLS for key in keys)
    return _row(OPENENV.name, sessions, ended, whole)


class _Proxy:
    """OpenEnv's capture server."""

    def __init__(self, python: str, engine: int, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        place = ("--llm-url", f"http://127.0.0.1:{engine}", "--model", "default", "--port", str(port))
        self._command = [python, "-m", "openenv.core.harness.capture.server", *place]
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Returns when it answers."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                httpx.get(f"{self.url}/health", trust_env=False).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError("OpenEnv's capture server does not answer")

    def create(self) -> str:
        """Opens a session; returns its key."""
        return str(httpx.post(f"{self.url}/sessions", json={}, trust_env=False, timeout=60).json()["session_id"])

    def restart(self) -> None:
        """Kills it, and starts it again."""
        self._process.kill()
        self._process.wait()
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def calls(self, key: str) -> int:
        """How many calls of a session can be exported."""
        answer = httpx.get(f"{self.url}/sessions/{key}/trace_entries", trust_env=False, timeout=60)
        return len(answer.json()["entries"]) if answer.status_code == 200 else 0

    def stop(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _proxy(python: str, engine: int) -> Iterator[_Proxy]:
    proxy = _Proxy(python, engine, free_port())
    try:
        proxy.wait()
        yield proxy
    finally:
        proxy.stop()


def _row(system: str, sessions: int, ended: int, whole: int) -> Row:
    return {"system": system, "sessions at the kill": sessions, "programs that ended": ended, "all calls kept": whole}


def main() -> None:
    """Prints a table."""
    chosen = parser("captures", __doc__).parse_args()
    emit(
        "captures",
        captures(5 if chosen.quick else 20),
        chosen,
        title="The process that captures is killed",
        measures=f"Programs that make {CALLS} calls each, and whether all of their tokens are there to train on.",
        leaves_out="How fast, real agents, and a program that is begun anew by its runner.",
    )


if __name__ == "__main__":
    main()
