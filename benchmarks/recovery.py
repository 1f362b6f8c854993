"""How long after kill -9 of a worker its rollouts run elsewhere, and what that costs.

    python -m benchmarks.recovery [--quick] [--kills 3]

One of two workers is killed while its rollouts wait for their second turn. Its parent reports that and starts it again.
A rollout counts as running elsewhere when another worker has claimed it. Then all rollouts go on to their end, and the
lost ones, the results that came twice and the turns that were sampled twice are counted.
"""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.local_pool import local_pool
from benchmarks.report import Plot, Row, emit, parser

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_common.store import Store
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

TURNS = 3
IN_FLIGHT = 200
KILLS = 3
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 60


class _HeldPolicy:
    """A policy that answers second turns only after `let_go`, and counts what it sampled."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._policy = ScriptedPolicy(tokenizer, turns=TURNS)
        self.waiting: set[str] = set()
        self.sampled: Counter[tuple[str, int]] = Counter()
        self._go = threading.Event()

    def let_go(self) -> None:
        """Lets the policy answer from now on."""
        self._go.set()

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        if params.turn == 2:
            self.waiting.add(params.rollout_id)
            while not self._go.is_set():  # noqa: ASYNC110  set by another thread
                await asyncio.sleep(LOOK_SECONDS)
        self.sampled[params.rollout_id, params.turn] += 1
        return await self._policy(prompt_ids, params)


def measure(pool: LocalPool, in_flight: int) -> Row:
    """Kills a worker once. The pool has two, each with slots for all rollouts; this waits until both are there."""
    tokenizer = load_tokenizer(TINY)
    policy = _HeldPolicy(tokenizer)
    app = callback_app(policy, tokenizer=tokenizer, tools=pool.url)
    asks = [{"messages": [{"role": "user", "content": question}]} for question in calculator_prompts(in_flight)]
    # Nothing is declared: the trainer says itself that it may be asked again.
    defaults = {"tokenizer_name": TINY, "max_turns": TURNS}
    with serve_callback(app, [0]) as trainer, pool.client() as client:
        _await(lambda: {w["pid"] for w in client.workers() if w["alive"]} >= {w.pid for w in pool.workers})
        batch = client.submit(asks, defaults=defaults, trainer=trainer.urls)
        uids = batch.accepted.rollouts if batch.accepted else []
        _await(lambda: len(policy.waiting) == in_flight)
        before = asyncio.run(_views(pool, uids))
        victim, _ = Counter(view.worker for view in before).most_common(1)[0]
        taken = [view.uid for view in before if view.worker == victim]
        index = next(i for i, worker in enumerate(pool.workers) if worker.worker_id == victim)
        start = time.perf_counter()
        pool.kill_worker(index)
        seconds = asyncio.run(_elsewhere(pool, taken, victim, start))
        policy.let_go()
        delivered = Counter(result.uid for result in batch.results())
    return {
        "rollouts of the killed worker": len(taken),
        "first, s": min(seconds),
        "median, s": median(seconds),
        "p95, s": sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1],
        "last, s": max(seconds),
        "lost": in_flight - len(delivered),
        "delivered twice": sum(count > 1 for count in delivered.values()),
        "turns sampled twice": sum(count > 1 for count in policy.sampled.values()),
    }


async def _views(pool: LocalPool, uids: Sequence[str]) -> list[RolloutView]:
    store = Store.open(pool.redis_url)
    try:
        views = await asyncio.gather(*(store.rollouts.view(uid, None) for uid in uids))
    finally:
        await store.close()
    return [view for view in views if view is not None]


async def _elsewhere(pool: LocalPool, uids: Sequence[str], victim: str | None, start: float) -> list[float]:
    """Returns for each rollout how many seconds after `start` it was seen on another worker."""
    store, left, seconds = Store.open(pool.redis_url), list(uids), []
    try:
        while left:
            views = await asyncio.gather(*(store.rollouts.view(uid, None) for uid in left))
            now = time.perf_counter() - start
            if now > PATIENCE_SECONDS:
                raise AssertionError(f"{len(left)} rollouts of the killed worker run nowhere after {now:.0f} s")
            moved = {
                view.uid
                for view in views
                if view is not None and view.status is RolloutStatus.RUNNING and view.worker != victim
            }
            seconds += [now] * len(moved)
            left = [uid for uid in left if uid not in moved]
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await store.close()
    return seconds


def _await(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not what():
        if time.monotonic() > end:
            raise AssertionError(f"the pool was not ready within {PATIENCE_SECONDS} s")
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Kills a worker several times and prints a table."""
    options = parser("recovery", __doc__)
    options.add_argument("--kills", type=int, default=KILLS)
    chosen = options.parse_args()
    in_flight = 20 if chosen.quick else IN_FLIGHT
    with local_pool(workers=2, env={"ROLLOUTPOOL_WORKER_SLOTS": str(2 * in_flight)}) as pool:
        rows: list[Row] = [
            {"kill": kill, **measure(pool, in_flight)} for kill in range(1, 2 if chosen.quick else chosen.kills + 1)
        ]
    emit(
        "recovery",
        rows,
        chosen,
        title="A worker is killed",
        measures=(
            "Seconds from kill -9 of one of two workers to the moment at which its rollouts, each waiting for its "
            "second turn, run on another worker; looked at twenty times a second. The budget is 10 s for the last, and "
            "nothing lost, delivered twice, or sampled twice."
        ),
        leaves_out=(
            "A machine that goes away with its Redis, a network that is cut (see the chaos campaign, `make chaos`), "
            "and trainers that do not say that they are idempotent: for those a call in flight at the kill is "
            "ambiguous and not made again."
        ),
        plots=(Plot(kind="bar", x="kill", y=("first, s", "median, s", "p95, s", "last, s"), unit="s", budget=10),),
    )


if __name__ == "__main__":
    main()
