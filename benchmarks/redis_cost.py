"""What Redis' own CPU a rollout costs, script by script, and what that is in a turn.

    python -m benchmarks.redis_cost [--quick] [--folder DIR]

Scripts are run on a Redis of their own with `appendfsync always`, in the order in which a rollout runs them, 25 at a
time, as a worker with many rollouts in flight sends them. A figure is the growth of `used_cpu_user` and `used_cpu_sys`
over all calls of one script, divided by their number, so it holds the reading, the writing and the disk as well. Rounds
follow each other on an empty Redis; the smallest is the least disturbed.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from benchmarks.fsync import server
from benchmarks.report import Row, emit, parser

from rolloutpool_common.store import NewBatch, NewRollout, Store
from rolloutpool_common.store.connection import Connection

__all__ = ["main", "measure"]

AT_ONCE = 25
RECORDS = 6
"""A rollout of three turns."""
RECORD = b"x" * 1000
TOKEN = "t" * 16


async def _spent(connection: Connection) -> float:
    """Microseconds of CPU that Redis has used since its start."""
    used: dict[str, float] = await connection.redis.info("cpu")
    return 1e6 * (used["used_cpu_user"] + used["used_cpu_sys"])


async def _round(url: str, rollouts: int) -> dict[str, float]:
    """Runs each script once, or `RECORDS` times, for each rollout; returns microseconds per call."""
    store, connection = Store.open(url), Connection(url)
    await connection.redis.flushdb()
    spec = {"server_url": "http://127.0.0.1:9", "tokenizer_name": "rolloutpool/tiny", "sampling_params": {}}
    item = NewRollout(
        rollout_id=None, overrides=b'{"messages":[{"role":"user","content":"What is 2 + 2?"}]}', deadline_s=600.0
    )
    batch = "b" + "0" * 32
    await store.batches.submit(
        NewBatch(batch_id=batch, owner="guest", shared=orjson.dumps(spec), rollouts=[item] * rollouts)
    )
    found: dict[str, float] = {}

    async def run(name: str, calls: Sequence[tuple[Any, ...]]) -> None:
        before = await _spent(connection)
        for begin in range(0, len(calls), AT_ONCE):
            await asyncio.gather(*(connection.script(name, *call) for call in calls[begin : begin + AT_ONCE]))
        found[name] = (await _spent(connection) - before) / len(calls)

    uids = [f"{batch}-{index}" for index in range(rollouts)]
    await run("claim", [(batch, index, "w", "shared", TOKEN) for index in range(rollouts)])
    await run("calling", [(uid, TOKEN) for uid in uids])
    await run("journal", [(uid, TOKEN, n, n // 2, RECORD) for n in range(RECORDS) for uid in uids])
    counts = ("sampled", 9, "tokens", 99, "turns", 3, "alignment:exact", 1, "drift:none", 3)
    result = b"{" + RECORD * 3
    await run("finish", [(batch, i, TOKEN, "completed", b"", result, b"[1]", b"", *counts) for i in range(rollouts)])
    await connection.close()
    await store.close()
    return found


def measure(folder: Path | None, rollouts: int, rounds: int) -> list[Row]:
    """Returns one row per script."""
    with tempfile.TemporaryDirectory(dir=folder) as where, server("always", Path(where)) as port:
        found = [asyncio.run(_round(f"redis://127.0.0.1:{port}/0", rollouts)) for _ in range(rounds)]
    rows: list[Row] = []
    for name in found[0]:
        spent = [one[name] for one in found]
        rows.append({"script": name, "CPU us": min(spent), "CPU us, most": max(spent), "calls": rollouts * rounds})
    return rows


def main() -> None:
    """Prints a table."""
    options = parser("redis_cost", __doc__)
    options.add_argument("--folder", type=Path)
    chosen = options.parse_args()
    rollouts, rounds = (200, 3) if chosen.quick else (1000, 7)
    emit(
        "redis_cost",
        measure(chosen.folder, rollouts, rounds),
        chosen,
        title="What a script costs Redis",
        measures=f"Microseconds of Redis' CPU per call, {AT_ONCE} calls a round trip; the smallest of {rounds} rounds.",
        leaves_out="The worker, the broker's commands, and what the reconciler looks at.",
    )


if __name__ == "__main__":
    main()
