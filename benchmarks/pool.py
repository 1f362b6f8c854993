"""The pool under load: batches go through the API; results are read as a client reads them, by long-poll and cursor.

The pool is as it is shipped: `appendfsync always` on the disk below `build/`, Celery events on, default log level. Only
Flower is not started. This process does little while the clock runs: it makes the bodies before, and looks at the
results afterwards.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

import httpx
import orjson
from benchmarks.conversations import VARIANTS, messages, rollout_id, tool_names
from benchmarks.cpu import Usage
from benchmarks.load import Load, Measured, System
from benchmarks.processes import ENVIRONMENT, ROOT

from rolloutpool_trainer import LocalPool

PAGE = 200
"""Results per page, as the trainer's client asks for."""


class PoolUnderLoad:
    """A running pool."""

    def __init__(self, http: httpx.Client, trainer: str, tokenizer: str, system: System = System.POOL) -> None:
        self._system = system
        self._http = http
        self._trainer = trainer
        self._tokenizer = tokenizer
        self._serial = 0

    @property
    def port(self) -> int:
        """Where its API listens."""
        return self._http.base_url.port or 80

    def as_system(self, system: System) -> "PoolUnderLoad":
        """Returns the same pool, whose measurements are of another system."""
        return self if system is self._system else PoolUnderLoad(self._http, self._trainer, self._tokenizer, system)

    def warm_up(self, load: Load) -> None:
        """Opens connections and fills caches, those of the trainer too."""
        self.measure(replace(load, turns=2, latency_ms=0, slow_ms=None, rollouts=2 * load.in_flight))
        self.measure(replace(load, latency_ms=0, slow_ms=None, rollouts=VARIANTS))

    def measure(self, load: Load) -> Measured:
        """Runs one batch; the clock runs from the POST to the last result. Raises AssertionError on a bad result."""
        body = self._body(load)
        before, start = Usage(), time.perf_counter()
        accepted = self._http.post("/v1/batches", content=body, headers={"Content-Type": "application/json"})
        accepted.raise_for_status()
        pages = self._read(accepted.json()["batch_id"])
        seconds = time.perf_counter() - start
        spent = Usage().since(before)
        _check(pages, load)
        return Measured(self._system, load, seconds, spent)

    def _body(self, load: Load) -> bytes:
        serials = range(self._serial, self._serial + load.rollouts)
        self._serial += load.rollouts + (-load.rollouts) % VARIANTS
        return orjson.dumps(
            {
                "rollouts": [
                    {
                        "messages": messages(load, serial),
                        "rollout_id": rollout_id(load, serial),
                    }
                    for serial in serials
                ],
                "defaults": {
                    "tokenizer_name": self._tokenizer,
                    "tools": tool_names(load),
                    "max_turns": load.turns,
                    "max_tokens_total": 1_000_000,
                    "idempotent": True,
                },
                "trainer": {"server_urls": [self._trainer]},
            }
        )

    def _read(self, batch_id: str) -> list[bytes]:
        pages: list[bytes] = []
        cursor, complete = "0", False
        while not complete:
            page = self._http.get(
                f"/v1/batches/{batch_id}/results",
                params={"cursor": cursor, "limit": PAGE, "wait": 25, "format": "ndjson"},
            )
            page.raise_for_status()
            pages.append(page.content)
            cursor, complete = page.headers["X-Next-Cursor"], page.headers["X-Batch-Complete"] == "true"
        return pages


def _check(pages: list[bytes], load: Load) -> None:
    results = [orjson.loads(line)["result"] for page in pages for line in page.splitlines()]
    if len(results) != load.rollouts:
        raise AssertionError(f"{load.rollouts} rollouts, but {len(results)} results")
    for result in results:
        if (result["status"], result["alignment"], result["num_llm_calls"]) != ("completed", "exact", load.turns):
            raise AssertionError(f"not a clean rollout of {load.turns} turns: {result}")


@contextmanager
def running_pool(
    trainer: str, *, workers: int, in_flight: int, tickets_of: int, tokenizer: str
) -> Iterator[PoolUnderLoad]:
    """Starts a pool that runs `in_flight` rollouts at once, over all workers, and stops it after the block."""
    env = {
        **ENVIRONMENT,
        "ROLLOUTPOOL_WORKER_SLOTS": str(math.ceil(in_flight / workers)),
        "ROLLOUTPOOL_ROLLOUTS_PER_TICKET": str(tickets_of),
        "ROLLOUTPOOL_PLUGINS": "benchmarks.lookup_plugin",
    }
    (ROOT / "build").mkdir(exist_ok=True)
    with (
        TemporaryDirectory(dir=ROOT / "build", prefix="bench-state-") as state,
        LocalPool(workers, flower=False, state=state, tokenizers=[tokenizer], env=env) as pool,
        httpx.Client(base_url=pool.url, trust_env=False, timeout=120.0) as http,
    ):
        yield PoolUnderLoad(http, trainer, tokenizer)
