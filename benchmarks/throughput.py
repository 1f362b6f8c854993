"""Rollouts per second and CPU per rollout, by role.

python -m benchmarks.throughput --turns 3 --in-flight 100 --rollouts 1000
"""

import argparse

from benchmarks.load import Load, Measured
from benchmarks.pool import running_pool
from benchmarks.processes import serving

__all__ = ["main"]


def shown(measured: Measured) -> str:
    """One line."""
    roles = "  ".join(f"{role} {measured.cpu_ms(role):.2f}" for role in measured.cpu_seconds)
    return (
        f"{measured.system}: {measured.per_second:.0f}/s, own CPU {measured.own_cpu_ms:.2f} ms per rollout ({roles}; "
        f"trainer and load generator {measured.others_share:.0%})"
    )


def main() -> None:
    """Prints a line per repeat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--latency-ms", type=int, default=0)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tickets-of", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    load = Load(
        turns=options.turns,
        in_flight=options.in_flight,
        latency_ms=options.latency_ms,
        rollouts=options.rollouts,
    )
    with (
        serving("benchmarks.stub_trainer") as port,
        running_pool(
            f"http://127.0.0.1:{port}",
            workers=options.workers,
            in_flight=options.in_flight,
            tickets_of=options.tickets_of,
        ) as pool,
    ):
        pool.measure(load.warm_up())
        for _ in range(options.repeats):
            print(shown(pool.measure(load)), flush=True)


if __name__ == "__main__":
    main()
