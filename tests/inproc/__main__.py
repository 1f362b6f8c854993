"""`python -m tests.inproc [--histories N] [--seconds S] [--seed S] [--redis real]`: plays histories, and judges them.

Each history follows from its seed, so `--seed S --histories 1` plays one again. It exits with 1 where a judge found a
fault.
"""

import argparse
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.inproc.clock import Clock, seconds

if TYPE_CHECKING:
    from tests.inproc.histories import World

HASH_SEED = "0"


def main() -> int:
    """Plays; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.inproc", description=__doc__)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no history after so many")
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the next one has the next")
    parser.add_argument("--redis", choices=("memory", "real"), default="memory")
    parser.add_argument("--keep-going", action="store_true", help="also after a fault")
    parser.add_argument("--log", action="store_true", help="show the pool's log")
    chosen = parser.parse_args()
    # Sets of texts have an order by chance, which would make two plays of a seed differ.
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.inproc", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": HASH_SEED},
        )
    with opened_world(real=chosen.redis == "real", log=chosen.log) as world:
        return _play(world, chosen)


@contextmanager
def opened_world(*, real: bool = False, log: bool = False) -> Iterator["World"]:
    """Yields what all histories have; without a real Redis, time is the pool's own from now on."""
    clock = None if real else Clock()
    if clock is not None:
        # Before the product is imported: some of its modules keep the functions that tell the time.
        clock.install()
    import structlog
    from tests.inproc.histories import World

    if not log:
        logging.disable(logging.CRITICAL)
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if not real:
        yield World(clock)
        return
    from tests.inproc.fake_redis import served
    from tests.support.redis_server import running_redis

    with running_redis() as server:
        yield World(None, lambda: served(server.url))


def _play(world: "World", chosen: argparse.Namespace) -> int:
    begun, found, rollouts, played, pool_s = seconds(), 0, 0, 0, 0.0
    statuses: Counter[str] = Counter()
    kills: Counter[str] = Counter()
    for seed in range(chosen.seed, chosen.seed + chosen.histories):
        if seconds() - begun > chosen.seconds:
            break
        outcome = world.play(seed)
        played, rollouts, pool_s = played + 1, rollouts + outcome.rollouts, pool_s + outcome.pool_s
        statuses.update(outcome.statuses)
        kills.update(kill.partition(" ")[2] for kill in outcome.kills)
        for fault in outcome.faults[:8]:
            print(f"seed {seed}: {fault}", flush=True)
        if outcome.faults:
            found += 1
            print(f"seed {seed}: {len(outcome.faults)} faults after {seconds() - begun:.1f} s", flush=True)
            if not chosen.keep_going:
                break
    real_s = seconds() - begun
    print(
        f"{played} histories, {rollouts} rollouts ({rollouts / real_s:.0f} a second) in {real_s:.1f} s, "
        f"{pool_s:.0f} s of the pool; {sum(kills.values())} kills; {found} histories with faults"
    )
    print(f"ends: {dict(sorted(statuses.items()))}\nkills: {dict(sorted(kills.items()))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
