"""What Redis' own CPU a rollout costs, script by script, and how many functions a call of it calls in its worker.

    python -m benchmarks.redis_cost [--quick] [--folder DIR]

Scripts are run on a Redis of their own with `appendfsync always`, in the order in which a rollout runs them, 25 at a
time, as a worker with many rollouts in flight sends them; journal records also in smaller ticks. CPU is the growth of
`used_cpu_user` and `used_cpu_sys` over all calls of one script, divided by their number, so it holds the reading, the
writing and the disk as well. Rounds follow each other on an empty Redis; the smallest is the least disturbed. Functions
are those of Python and of C, counted by `sys.setprofile` in a round of its own, which no CPU is taken from.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import uvloop
from benchmarks.fsync import server
from benchmarks.report import Row, emit, parser

from rolloutpool_common.store import NewBatch, NewRollout, Store
from rolloutpool_common.store.connection import Connection

AT_ONCE = 25
TICKS = (1, 2, 4, 8, AT_ONCE, 100)
"""Journal records that are written together."""
RECORD = b"x" * 1000
TOKEN = "t" * 16


async def _spent(connection: Connection) -> float:
    """Microseconds of CPU that Redis has used since its start."""
    used: dict[str, float] = await connection.redis.info("cpu")
    return 1e6 * (used["used_cpu_user"] + used["used_cpu_sys"])


async def _round(url: str, rollouts: int, *, counts: bool = False) -> dict[str, float]:
    """Runs each script for each rollout; returns microseconds, or functions, per call."""
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

    async def run(
        name: str, call: Callable[..., Awaitable[Any]], calls: Sequence[tuple[Any, ...]], at_once: int = AT_ONCE
    ) -> None:
        functions = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal functions
            functions += event in ("call", "c_call")

        before = await _spent(connection)
        sys.setprofile(count if counts else None)
        for begin in range(0, len(calls), at_once):
            await asyncio.gather(*(call(*one) for one in calls[begin : begin + at_once]))
        sys.setprofile(None)
        found[name] = (functions if counts else await _spent(connection) - before) / len(calls)

    uids = [f"{batch}-{index}" for index in range(rollouts)]
    script = connection.script
    await run("claim", script, [("claim", batch, index, "w", "shared", TOKEN) for index in range(rollouts)])
    await run("calling", script, [("calling", uid, TOKEN) for uid in uids])
    for n, tick in enumerate(TICKS):
        records = [("journal", uid, TOKEN, n, n // 2, RECORD) for uid in uids]
        await run(f"journal, {tick} a tick", connection.joined, records, tick)
    result, of_result = (
        b"{" + RECORD * 3,
        ("sampled", 9, "tokens", 99, "turns", 3, "alignment:exact", 1, "drift:none", 3),
    )
    ends = [("finish", batch, i, TOKEN, "completed", b"", result, b"[1]", b"", *of_result) for i in range(rollouts)]
    await run("finish", script, ends)
    await connection.close()
    await store.close()
    return found


def measure(folder: Path | None, rollouts: int, rounds: int) -> list[Row]:
    """Returns one row per script."""
    with tempfile.TemporaryDirectory(dir=folder) as where, server("always", Path(where)) as port:
        url = f"redis://127.0.0.1:{port}/0"
        counted = uvloop.run(_round(url, rollouts, counts=True))
        found = [uvloop.run(_round(url, rollouts)) for _ in range(rounds)]
    rows: list[Row] = []
    for name, functions in counted.items():
        spent = [one[name] for one in found]
        rows.append({"script": name, "CPU us": min(spent), "CPU us, most": max(spent), "functions": functions})
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
        measures=(
            f"Microseconds of Redis' CPU, the smallest of {rounds} rounds, and functions here, those of gathering too, "
            f"per call; {AT_ONCE} calls a tick where no other number is said."
        ),
        leaves_out="The worker, the broker's commands, and what the reconciler looks at.",
    )


if __name__ == "__main__":
    main()
