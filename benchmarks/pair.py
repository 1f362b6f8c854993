"""What a rollout costs its worker in the working tree, compared with a commit: pairs of runs that take turns.

    python -m benchmarks.pair COMMIT [--pairs 5] [--quick]

1. The commit is laid out in build/pairs with an environment of its own (`pair_tree`).
2. Each run is a process with a pool of its own (`pair_side`): one worker, real Redis, the same batches, and one stub
   trainer for all. The commit begins the first pair, the working tree the second, and so on.
3. A ratio is the working tree's figure divided by the commit's; 0.5 is half. The ratio of each pair shows the noise.
4. Calls of functions are counted in a run of their own for each side, because counting slows the worker down.

Commands, trips and bytes of Redis are those of the whole pool. Commands that scripts call count too.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from benchmarks.conversations import VARIANTS, messages, rollout_id, tool_names
from benchmarks.load import Load
from benchmarks.pair_tree import Side, other_side, this_side
from benchmarks.processes import ROOT, serving
from benchmarks.report import Row, emit, parser

from rolloutpool_common.rendering import TINY

LOADS = (
    Load(turns=3, in_flight=100, latency_ms=0, rollouts=800),
    Load(turns=64, in_flight=32, latency_ms=0, rollouts=96),
)
COUNTED_TURNS = 1024
"""Whose calls are counted: enough that the beats of a second beside them are few."""
CALLS = "calls"

Spent = dict[str, dict[str, float]]
"""By turns and meter: what a rollout took in one run."""


def order(pairs: int, first: Side, second: Side) -> list[Side]:
    """Lists the runs of pairs whose sides take turns in being the first: A B, B A, A B."""
    return [side for n in range(pairs) for side in ((first, second) if n % 2 == 0 else (second, first))]


def compare(old: Sequence[Spent], new: Sequence[Spent]) -> list[Row]:
    """Compares the runs of the commit with those of the working tree, pair by pair."""
    rows: list[Row] = []
    for turns, meters in old[0].items():
        for meter in meters:
            before, after = ([run[turns][meter] for run in side] for side in (old, new))
            ratios = [b / a if a else None for a, b in zip(before, after, strict=True)]
            known = sorted(ratio for ratio in ratios if ratio is not None)
            rows.append(
                {
                    "turns": int(turns),
                    "a rollout's": meter,
                    "commit": _rounded(median(before)),
                    "working tree": _rounded(median(after)),
                    "ratio of medians": round(median(after) / median(before), 3) if median(before) else None,
                    "pairs, smallest": round(known[0], 3) if known else None,
                    "pairs, median": round(median(known), 3) if known else None,
                    "pairs, largest": round(known[-1], 3) if known else None,
                }
            )
    return rows


def main() -> None:
    """Runs the benchmark."""
    options = parser("pair", __doc__)
    options.add_argument("commit", help="the other side, as git names it")
    options.add_argument("--pairs", type=int, default=5)
    arguments = options.parse_args()
    old, new = other_side(arguments.commit), this_side()
    loads = [load.with_rollouts(load.rollouts // 8) if arguments.quick else load for load in LOADS]
    with serving("benchmarks.pair_trainer") as port:
        trainer = f"http://127.0.0.1:{port}"
        runs: dict[str, list[Spent]] = {old.name: [], new.name: []}
        for side in order(arguments.pairs, old, new):
            runs[side.name].append(_run(side, loads, trainer))
        few = [load.with_rollouts(COUNTED_TURNS // load.turns) for load in loads]
        counted = {side.name: [_run(side, few, trainer, counts=True)] for side in (old, new)}
    rows = compare(runs[old.name], runs[new.name]) + compare(counted[old.name], counted[new.name])
    emit(
        "pair",
        rows,
        arguments,
        title=f"A rollout in the working tree and at {old.name}",
        measures=f"{arguments.pairs} pairs of runs that take turns, each a pool with one worker. A ratio is the "
        f"working tree's figure divided by the one of {old.name}. CPU and calls are the worker's, the rest is the "
        "pool's.",
        leaves_out="The API's and Redis' CPU, and the rate. Calls are counted in one run of each side.",
    )


def _run(side: Side, loads: Sequence[Load], trainer: str, *, counts: bool = False) -> Spent:
    """Runs one side once, in a process of its own."""
    with TemporaryDirectory(dir=ROOT / "build", prefix="pair-") as folder:
        plan = Path(folder, "plan.json")
        calls = Path(folder, CALLS)
        calls.mkdir()
        slots = str(max(load.in_flight for load in loads))
        document = {
            "trainer": trainer,
            "tokenizer": TINY,
            "folder": folder,
            "root": str(side.root),
            "calls": str(calls) if counts else None,
            "settings": {"ROLLOUTPOOL_WORKER_SLOTS": slots, "ROLLOUTPOOL_ROLLOUTS_PER_TICKET": "8"},
            "lengths": [_length(load, trainer) for load in loads],
        }
        plan.write_bytes(orjson.dumps(document))
        done = subprocess.run(
            [side.python, "-m", "benchmarks.pair_side", plan], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
    spent: Spent = orjson.loads(done.stdout)
    shown = ", ".join(f"{turns} turns: {_shown(meters)}" for turns, meters in spent.items())
    print(f"{side.name}: {shown}", flush=True)
    return spent


def _length(load: Load, trainer: str) -> dict[str, Any]:
    """What one length runs: a batch that fills caches and opens connections, then the one that is measured."""
    warm_ups = max(VARIANTS, min(load.rollouts, load.in_flight))
    first = warm_ups + (-warm_ups) % VARIANTS
    return {
        "turns": load.turns,
        "rollouts": load.rollouts,
        "warm_ups": warm_ups,
        "warm_up": _batch(load, trainer, range(warm_ups)),
        "batch": _batch(load, trainer, range(first, first + load.rollouts)),
    }


def _batch(load: Load, trainer: str, serials: range) -> str:
    rollouts = [{"messages": messages(load, serial), "rollout_id": rollout_id(load, serial)} for serial in serials]
    defaults = {
        "tokenizer_name": TINY,
        "tools": tool_names(load),
        "max_turns": load.turns,
        "max_tokens_total": 1_000_000,
        "idempotent": True,
    }
    return orjson.dumps({"rollouts": rollouts, "defaults": defaults, "trainer": {"server_urls": [trainer]}}).decode()


def _rounded(value: float) -> float:
    return round(value, 2) if value < 1000 else round(value)


def _shown(meters: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_rounded(value)}" for name, value in meters.items())


if __name__ == "__main__":
    main()
