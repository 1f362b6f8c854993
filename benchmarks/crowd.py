"""4,000 rollouts in flight in two workers, with a model that takes 10 s: what the pool loses to the ideal.

    python -m benchmarks.crowd [--quick]

Each rollout in flight holds a connection to the trainer, so the trainer, the workers and the ideal each need some
thousand open files. Each process raises its own limit as far as it may (`ulimit -Hn`), and the run says how far that
was.
"""

import resource
from dataclasses import replace

from benchmarks.load import System
from benchmarks.matrix import Point
from benchmarks.report import Row, emit, parser
from benchmarks.throughput import QWEN3, Repeat, measure, rows, shown

from rolloutpool_common.process.open_files import allow_open_files
from rolloutpool_common.rendering import TINY

CROWD = Point(
    experiment="crowd",
    in_flight=4000,
    latency_ms=10_000,
    rollouts=10_000,
    systems=(System.POOL, System.IDEAL_RAW),
)
"""10,000 are as many as a batch may have."""
QUICK = replace(CROWD, in_flight=100, latency_ms=200, rollouts=200)
REPEATS = 2


def main() -> None:
    """Measures the point and prints a table."""
    options = parser("crowd", __doc__).parse_args()
    point = replace(QUICK if options.quick else CROWD, tokenizer=str(QWEN3) if QWEN3.is_dir() else TINY)
    if said := allow_open_files(2 * point.in_flight):
        raise SystemExit(f"benchmarks.crowd: {said}")
    repeats: list[Repeat] = []
    for repeat in measure(point, repeats=1 if options.quick else REPEATS, seconds=0):
        repeats.append(repeat)
        for measured in repeat.values():
            print(shown(measured), flush=True)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found: list[Row] = [{**row, "ulimit -n": allowed} for row in rows(point, repeats)]
    emit(
        "crowd",
        found,
        options,
        title="Thousands in flight",
        measures=(
            "As in the table of throughput, with thousands of rollouts in flight in two worker processes, and a model "
            "that takes as long as a busy inference engine. The ideal makes the same calls and does nothing else."
        ),
        leaves_out="A model, networks, TLS. Memory is in a table of its own.",
    )


if __name__ == "__main__":
    main()
