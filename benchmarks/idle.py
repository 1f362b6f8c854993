"""What rollouts cost that only wait: CPU a second by process, and what Redis is asked meanwhile.

    python -m benchmarks.idle [--quick] [--rollouts 100]

The trainer takes a batch's calls and answers none. So nothing changes, and all that runs is what looks whether anything
has. `ms` are milliseconds of CPU a second, from /proc (`cpu.py`).
"""

import time
from typing import Any

import redis
from benchmarks.cpu import Usage
from benchmarks.local_pool import local_pool
from benchmarks.report import Row, emit, parser
from benchmarks.submit import silent_trainer

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import LocalPool

ROLLOUTS = 100
SECONDS = 30.0
SETTLED_SECONDS = 5.0
"""From the last call to the first look: what begins with a batch is over then."""


def measure(pool: LocalPool, rollouts: int, seconds: float) -> list[Row]:
    """Returns a row for each role, one for all, and what Redis was asked."""
    items = [{"messages": [{"role": "user", "content": "What is 1 + 1?"}]}] * rollouts
    with (
        silent_trainer() as trainer,
        redis.Redis.from_url(pool.redis_url) as store,
        pool.client() as client,
    ):
        batch = client.submit(items, defaults={"tokenizer_name": TINY}, trainer=[trainer.url])
        while batch.status().counts[RolloutStatus.RUNNING] < rollouts:
            time.sleep(0.1)
        time.sleep(SETTLED_SECONDS)
        asked, before = _asked(store), Usage()
        time.sleep(seconds)
        spent, now = Usage().since(before), _asked(store)
        batch.cancel()
    roles: list[Row] = [
        {"process": role, "ms": spent.get(role, 0.0) * 1000 / seconds} for role in ("api", "worker", "redis")
    ]
    total: Row = {"process": "together", "ms": sum(float(row["ms"] or 0) for row in roles)}
    commands: list[Row] = [
        {"command": name, "a second": (count - asked.get(name, 0)) / seconds}
        for name, count in sorted(now.items(), key=lambda item: asked.get(item[0], 0) - item[1])
        if count - asked.get(name, 0) >= seconds / 10
    ]
    return [*roles, total, *commands]


def _asked(store: Any) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in store.info("commandstats").items()}


def main() -> None:
    """Measures once and prints a table."""
    options = parser("idle", __doc__)
    options.add_argument("--rollouts", type=int, default=ROLLOUTS)
    chosen = options.parse_args()
    with local_pool(workers=1, env={"ROLLOUTPOOL_WORKER_SLOTS": str(2 * chosen.rollouts)}) as pool:
        rows = measure(pool, chosen.rollouts, 3.0 if chosen.quick else SECONDS)
    emit(
        "idle",
        rows,
        chosen,
        title="Rollouts that wait",
        measures=(
            f"Milliseconds of CPU a second by process while {chosen.rollouts} rollouts wait for their trainer, and the "
            "commands a second that Redis carries out, those within scripts included."
        ),
        leaves_out="Replies: a model that answers each second wakes worker and Redis for each of them.",
    )


if __name__ == "__main__":
    main()
