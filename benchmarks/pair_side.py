"""One run of one side of a pair: starts a pool of this Python's packages, runs batches, prints what they cost.

    python -m benchmarks.pair_side PLAN

The same file measures both sides, with the packages of each. So it uses only what all commits have: the local pool, the
wire protocol, and nothing of ours behind them. The batches were written beforehand by `benchmarks.pair`, the trainer is
a process of its own, and the pool is as it is shipped, with one worker and without Flower.
"""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import orjson
import redis
from benchmarks.cpu import Usage

from rolloutpool_trainer import LocalPool

SETTLED_SECONDS = 0.5
"""After a batch: calls are written down every tenth of a second."""
HOOK = Path(__file__).with_name("pair_hook")


class _Pool:
    """A pool with one worker, and its meters."""

    def __init__(self, pool: LocalPool, trainer: str, calls: str | None) -> None:
        self._http = httpx.Client(base_url=pool.url, trust_env=False, timeout=120.0)
        self._redis = redis.Redis.from_url(pool.redis_url)
        self._trainer = trainer
        self._calls = calls

    def run(self, body: bytes, rollouts: int, turns: int) -> None:
        """Runs a batch to its last result; raises AssertionError where one is not clean."""
        accepted = self._http.post("/v1/batches", content=body, headers={"Content-Type": "application/json"})
        accepted.raise_for_status()
        url, cursor, complete, found = f"/v1/batches/{accepted.json()['batch_id']}/results", "0", False, 0
        while not complete:
            page = self._http.get(url, params={"cursor": cursor, "limit": 200, "wait": 25, "format": "ndjson"})
            page.raise_for_status()
            for line in page.content.splitlines():
                result = orjson.loads(line)["result"]
                assert (result["status"], result["num_llm_calls"]) == ("completed", turns), result
                found += 1
            cursor, complete = page.headers["X-Next-Cursor"], page.headers["X-Batch-Complete"] == "true"
        assert found == rollouts, f"{rollouts} rollouts, but {found} results"

    def meters(self) -> dict[str, float]:
        """Reads all meters now."""
        usage = Usage()
        workers = [pid for pid, role in usage.by_process if role == "worker"]
        stats: dict[str, Any] = self._redis.info("stats")
        commands: dict[str, Any] = self._redis.info("commandstats")
        found = {
            "worker CPU, ms": 1000 * sum(s for (_, role), s in usage.by_process.items() if role == "worker"),
            "Redis trips": stats["total_reads_processed"],
            "Redis commands": sum(one["calls"] for one in commands.values()),
            "bytes to Redis": stats["total_net_input_bytes"],
            "bytes to the trainer": float(httpx.get(f"{self._trainer}/counted", trust_env=False).text),
        }
        if self._calls is None:
            return found
        counts = [Path(self._calls, str(pid)) for pid in workers]
        return {"calls": sum(int(file.read_text()) for file in counts if file.exists())}


def _check_origin(root: str) -> None:
    """Makes sure that a pool of this Python is made of this side's sources; a PYTHONPATH could mix the sides."""
    for part in ("common", "api", "worker", "rl", "trainer"):
        spec = find_spec(f"rolloutpool_{part}")
        origin = spec.origin if spec is not None else None
        if origin is None or not origin.startswith(f"{root}/{part}/src/"):
            raise RuntimeError(f"rolloutpool_{part} is imported from {origin}, and not from {root}")


def main() -> None:
    """Prints one JSON object: for each length what a rollout took, by meter."""
    plan = orjson.loads(Path(sys.argv[1]).read_bytes())
    _check_origin(plan["root"])
    calls: str | None = plan["calls"]
    env = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **plan["settings"]}
    if calls is not None:
        # The folder of this module stays on the path, because Python adds no other for a pool's processes.
        env |= {"PAIR_CALLS": calls, "PYTHONPATH": os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")])}
    spent: dict[str, dict[str, float]] = {}
    with (
        TemporaryDirectory(dir=plan["folder"], prefix="pair-state-") as state,
        LocalPool(1, flower=False, state=state, tokenizers=[plan["tokenizer"]], env=env) as pool,
    ):
        measured = _Pool(pool, plan["trainer"], calls)
        for length in plan["lengths"]:
            turns = length["turns"]
            measured.run(length["warm_up"].encode(), length["warm_ups"], turns)
            time.sleep(SETTLED_SECONDS)
            before = measured.meters()
            measured.run(length["batch"].encode(), length["rollouts"], turns)
            time.sleep(SETTLED_SECONDS)
            after = measured.meters()
            spent[str(turns)] = {name: (after[name] - before[name]) / length["rollouts"] for name in after}
    print(orjson.dumps(spent).decode())


if __name__ == "__main__":
    main()
