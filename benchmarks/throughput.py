"""Rollouts per second and CPU per rollout, compared with the founding pattern and the ideal.

    python -m benchmarks.throughput [--quick | --full]
    python -m benchmarks.throughput --turns 3 --in-flight 100 [--latency-ms 0 …] --systems pool

The second form measures one point and prints each repeat. All systems of a point are up at the same time and take
turns, so that a busy machine is busy for all of them. Ratios compare runs that follow each other.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Protocol

from benchmarks.ideal import Ideal
from benchmarks.load import Load, Measured, System
from benchmarks.matrix import Point, every_point, few_points, points
from benchmarks.pool import PoolUnderLoad, running_pool
from benchmarks.processes import ROOT, serving
from benchmarks.report import Plot, Row, emit, parser
from benchmarks.v1_load import V1UnderLoad, running_founding

from rolloutpool_common.rendering import TINY

QWEN3 = ROOT / "build" / "tokenizers" / "qwen3"
"""What `make tokenizers` lays out: a tokenizer and template as policies have them."""
Repeat = dict[System, Measured]


class _UnderLoad(Protocol):
    def measure(self, load: Load) -> Measured: ...


def measure(point: Point, *, repeats: int, seconds: float, rollouts: int | None = None) -> Iterator[Repeat]:
    """Yields each repeat when it is done; `rollouts` overrides how many rollouts take about `seconds`."""
    loads = {system: point.load(system, seconds) for system in point.systems}
    if rollouts is not None:
        loads = {system: load.with_rollouts(rollouts) for system, load in loads.items()}
    with ExitStack() as stack:
        port = stack.enter_context(serving("benchmarks.stub_trainer", "--tokenizer", point.tokenizer))
        trainer = f"http://127.0.0.1:{port}"
        running: dict[System, _UnderLoad] = {}
        pool: PoolUnderLoad | None = None
        for system in point.systems:
            if system.is_pool:
                # One pool for all of them: they take turns, and an idle second one would cost the first its cores.
                if pool is None:
                    pool = stack.enter_context(
                        running_pool(
                            trainer,
                            workers=point.workers,
                            in_flight=point.in_flight,
                            tickets_of=point.tickets_of,
                            tokenizer=point.tokenizer,
                        )
                    )
                if system in (System.POOL_V1, System.POOL_RERENDER):
                    v1 = V1UnderLoad(system, pool.port, trainer, point.tokenizer)
                    v1.warm_up(loads[system])
                    running[system] = v1
                else:
                    batches = pool.as_system(system)
                    batches.warm_up(loads[system])
                    running[system] = batches
            elif system is System.FOUNDING:
                founding = stack.enter_context(
                    running_founding(trainer, in_flight=point.in_flight, tokenizer=point.tokenizer)
                )
                founding.warm_up(loads[system])
                running[system] = founding
            else:
                running[system] = Ideal(system, port)
        for _ in range(repeats):
            yield {system: running[system].measure(loads[system]) for system in point.systems}


def rows(point: Point, repeats: Sequence[Repeat]) -> list[Row]:
    """Returns one row per system: medians over the repeats, and ratios with half of their range."""
    return [_row(point, system, repeats) for system in point.systems]


def _row(point: Point, system: System, repeats: Sequence[Repeat]) -> Row:
    own = [repeat[system] for repeat in repeats]
    load = own[0].load
    row: Row = {
        "varied": point.experiment,
        "system": system.value,
        "turns": load.turns,
        "in flight": load.in_flight,
        "latency, ms": load.latency_ms,
        "stragglers, ms": load.slow_ms,
        "result, characters": load.result_characters or None,
        "tokenizer": Path(point.tokenizer).name,
        "workers": point.workers if system.is_pool else None,
        "tickets of": point.tickets_of if system.is_pool else None,
        "rollouts": load.rollouts,
        "rollouts/s": median(one.per_second for one in own),
        "CPU ms": median(one.own_cpu_ms for one in own),
    }
    for role in ("api", "worker", "redis"):
        row[f"{role} ms"] = median(one.cpu_ms(role) for one in own) if system.is_pool else None
    row |= _ratio("rate / founding", system, System.FOUNDING, repeats, lambda one: one.per_second)
    row |= _ratio("CPU / founding", system, System.FOUNDING, repeats, lambda one: one.own_cpu_ms)
    row |= _ratio("CPU / pool", system, System.POOL, repeats, lambda one: one.own_cpu_ms)
    row |= _ratio("rate / ideal", system, System.IDEAL_RAW, repeats, lambda one: one.per_second)
    row["trainer, load %"] = median(one.others_share for one in own) * 100
    return row


def _ratio(name: str, system: System, other: System, repeats: Sequence[Repeat], of: "_Figure") -> Row:
    if system is other or other not in repeats[0]:
        return {name: None, f"{name} ±": None}
    ratios = [of(repeat[system]) / of(repeat[other]) for repeat in repeats if of(repeat[other])]
    return {name: median(ratios), f"{name} ±": (max(ratios) - min(ratios)) / 2} if ratios else {name: None}


class _Figure(Protocol):
    def __call__(self, measured: Measured, /) -> float: ...


def shown(measured: Measured) -> str:
    """Returns a measurement as one line."""
    roles = "  ".join(f"{role} {measured.cpu_ms(role):.2f}" for role in measured.cpu_seconds)
    return (
        f"{measured.system}: {measured.per_second:.0f}/s, own CPU {measured.own_cpu_ms:.2f} ms per rollout ({roles}; "
        f"trainer and load generator {measured.others_share:.0%})"
    )


def main() -> None:
    """Measures the matrix, or one point."""
    options = _options()
    if options.turns is not None:
        point = Point(
            experiment="one point",
            turns=options.turns,
            in_flight=options.in_flight,
            latency_ms=options.latency_ms,
            result_characters=options.result_characters,
            workers=options.workers,
            tickets_of=options.tickets_of,
            tokenizer=options.tokenizer,
            systems=tuple(System(name) for name in options.systems.split(",")),
        )
        for repeat in measure(point, repeats=options.repeats, seconds=options.seconds, rollouts=options.rollouts):
            for measured in repeat.values():
                print(shown(measured), flush=True)
        return
    real = str(QWEN3) if QWEN3.is_dir() else None
    chosen = every_point() if options.full else few_points(real) if options.quick else points(real)
    found: list[Row] = []
    for point in chosen:
        repeats = []
        for repeat in measure(point, repeats=options.repeats, seconds=options.seconds):
            repeats.append(repeat)
            for measured in repeat.values():
                print(f"{point.experiment} {measured.load}: {shown(measured)}", flush=True)
        found += rows(point, repeats)
    emit(
        "throughput",
        found,
        options,
        title="Throughput and CPU per rollout",
        measures=(
            "Whole rollouts: of calculator calls, or of calls that return real text of a given length. The time runs "
            "from the POST of a batch to the last result read by long-poll. Rates are by the wall clock. CPU time per "
            "rollout is from /proc: of the pool its API, workers and Redis (appendfsync always, Celery events on, no "
            "Flower), of the others their one process. Figures are medians; ratios are of one repeat, with half "
            "of their range. `founding` renders the history again each turn and keeps nothing; `ideal` makes the same "
            "calls and does nothing else. Stragglers: the latency of one rollout in 20."
        ),
        leaves_out=(
            "A model: the trainer answers from a table, and shares the cores with what is "
            "measured. Networks, TLS, drift. Conversations of 100 turns are the protocol's longest."
        ),
        plots=(
            Plot(
                kind="line",
                x="in flight",
                y=("rollouts/s",),
                unit="rollouts/s",
                series="system",
                only={"varied": "in flight"},
                log_x=True,
                log_y=True,
            ),
            Plot(
                kind="line",
                x="turns",
                y=("CPU ms",),
                unit="CPU ms per rollout",
                series="system",
                only={"varied": "turns"},
                log_x=True,
                log_y=True,
            ),
        ),
    )


def _options() -> argparse.Namespace:
    options = parser("throughput", __doc__)
    options.add_argument("--full", action="store_true", help="every combination; takes hours")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--seconds", type=float, default=4.0, help="about how long each run takes")
    one = options.add_argument_group("one point")
    one.add_argument("--turns", type=int, help="measure this point only, and write nothing")
    one.add_argument("--in-flight", type=int, default=100)
    one.add_argument("--latency-ms", type=int, default=0)
    one.add_argument("--result-characters", type=int, default=0, help="of each tool call; 0: a calculator's")
    one.add_argument("--workers", type=int, default=2)
    one.add_argument("--tickets-of", type=int, default=8)
    one.add_argument("--tokenizer", default=TINY, help="a directory, or the name of the tiny one")
    one.add_argument("--rollouts", type=int, help="how many; default: by --seconds")
    one.add_argument("--systems", default=System.POOL.value, help=",".join(System))
    return options.parse_args()


if __name__ == "__main__":
    main()
