"""How long innocent suspects wait until they are cleared, and how many are condemned by chance: a simulation.

    python -m benchmarks.suspects [--quick] [--runs 20]

The rule is the real one: the scripts in Redis decide who is tried with whom and who is poison. Only the workers are
simulated, on a clock of their own, so that minutes of trials take a second. Before it begins, each rollout has lost two
workers without progress. "With company" are rollouts whose turn may be asked again. "Alone" are those whose turn must
not be, which are tried one by one, as all suspects were before (docs/decisions/0004).
"""

import asyncio
import heapq
import itertools
import random
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean, median, quantiles

import orjson
import redis
from benchmarks.report import Row, emit, parser
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.support.ports import free_port

from rolloutpool_common.protocol.journal import MaskPlan, ObservationRecord, PlannedTurn
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, NewBatch, NewRollout, Store, new_token
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.reconciliation import MAX_CRASHES
from rolloutpool_trainer.local.redis_server import find_server

START_SECONDS = 1.5
"""From the start of an isolated worker to its first cohort."""
TURN_SECONDS = 2.5
"""Until a rollout has made progress."""
POISON_SECONDS = 0.5
"""Until a poisonous one has ended its worker."""
NOTICE_SECONDS = 1.2
"""Until the death is known."""
SLOTS = 64
_PROGRESS = ObservationRecord(
    messages=[], entries=(), planned=PlannedTurn(MaskPlan((), 0, None), "00" * 16), tools_ms=0.0, tool_calls=0
)


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    suspects: int
    poison: int
    chance: float = 0.0
    """Deaths per minute of a process for reasons that have nothing to do with its rollouts."""
    company: bool = True
    """Whether their turns may be asked again."""
    workers: int = 3
    seed: int = 0


@dataclass
class Trial:
    """What came of it."""

    cleared: dict[str, float] = field(default_factory=dict)
    """When each innocent suspect had made progress, in seconds."""
    condemned: set[str] = field(default_factory=set)
    poison: set[str] = field(default_factory=set)
    deaths: int = 0
    starts: int = 0
    """Of isolated workers."""
    largest: int = 0
    """Suspects in one cohort at the most."""

    @property
    def innocent_condemned(self) -> int:
        """How many were condemned by chance."""
        return len(self.condemned - self.poison)


async def simulate(store: Store, case: Case) -> Trial:
    """Tries suspects until each is cleared or condemned. The store must be empty."""
    return await _Simulation(store, case).run()


class _Simulation:
    def __init__(self, store: Store, case: Case) -> None:
        self._store = store
        self._case = case
        self._random = random.Random(case.seed)
        self._number = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._now = 0.0
        self._trial = Trial()
        self._open: set[str] = set()

    async def run(self) -> Trial:
        uids = await self._suspects()
        self._open = set(uids)
        self._trial.poison = set(self._random.sample(uids, self._case.poison))
        for n in range(self._case.workers):
            await self._announce(f"w{n}", WorkerRole.SHARED)
            self._in(n * 0.5 / self._case.workers, self._beat(f"w{n}"))
        while self._open:
            self._now, _, event = heapq.heappop(self._events)
            await event()
        return self._trial

    def _in(self, seconds: float, event: Callable[[], Awaitable[None]]) -> None:
        # The number keeps the order of events of the same moment.
        heapq.heappush(self._events, (self._now + seconds, next(self._number), event))

    def _beat(self, worker: str) -> Callable[[], Awaitable[None]]:
        """A worker without an isolated one asks with each beat whether to start one."""

        async def beat() -> None:
            if await self._store.trials.may_start(worker):
                self._trial.starts += 1
                child = f"{worker}-child{next(self._number)}"
                await self._announce(child, WorkerRole.ISOLATED)
                self._in(START_SECONDS, self._cohort(worker, child, company_first=True))
            else:
                self._in(0.5, self._beat(worker))

        return beat

    def _cohort(self, worker: str, child: str, *, company_first: bool) -> Callable[[], Awaitable[None]]:
        """An isolated worker takes a cohort, and lives through it or not."""

        async def begin() -> None:
            tokens = [new_token() for _ in range(SLOTS)]
            taken = await self._store.trials.take(child, worker, tokens, company_first=company_first)
            self._trial.largest = max(self._trial.largest, len(taken))
            if not taken:
                await self._store.workers.leave(child)
                return self._in(0.5, self._beat(worker))
            per_second = self._case.chance / 60
            death = self._random.expovariate(per_second) if per_second else float("inf")
            if any(uid in self._trial.poison for uid, _ in taken):
                death = min(death, POISON_SECONDS)
            if death < TURN_SECONDS:
                return self._in(death, self._die(worker, child))
            self._in(TURN_SECONDS, self._clear(worker, child, taken, again=not company_first))

        return begin

    def _die(self, worker: str, child: str) -> Callable[[], Awaitable[None]]:
        async def die() -> None:
            self._trial.deaths += 1
            self._in(NOTICE_SECONDS, self._notice(child))
            self._in(0.5, self._beat(worker))

        return die

    def _notice(self, child: str) -> Callable[[], Awaitable[None]]:
        async def notice() -> None:
            for uid in await self._store.workers.claims(child):
                if await self._store.reconciliation.take_back(uid, child) >= MAX_CRASHES:
                    self._trial.condemned.add(uid)
                    self._open.discard(uid)
            await self._store.workers.leave(child)

        return notice

    def _clear(
        self, worker: str, child: str, taken: list[tuple[str, str]], *, again: bool
    ) -> Callable[[], Awaitable[None]]:
        async def clear() -> None:
            for uid, token in taken:
                claim = await self._store.rollouts.claim(uid, child, WorkerRole.ISOLATED, token=token)
                assert isinstance(claim, Claim)
                await self._store.rollouts.journal(claim, [_PROGRESS], turns=1)
                await self._store.rollouts.release(claim, clean=True)
                self._trial.cleared[uid] = self._now
                self._open.discard(uid)
            await self._cohort(worker, child, company_first=again)()

        return clear

    async def _suspects(self) -> list[str]:
        """Submits rollouts and lets two workers die with all of them."""
        shared = {
            "sampling_params": {},
            "tokenizer_name": "none",
            "server_url": "http://127.0.0.1:9",
            "messages": [{"role": "user", "content": "5 + 3"}],
            "idempotent": self._case.company,
        }
        batch = NewBatch(
            batch_id=f"b{self._case.seed}",
            owner="simulation",
            shared=orjson.dumps(shared),
            rollouts=[NewRollout(rollout_id=None, overrides=b"{}")] * self._case.suspects,
        )
        await self._store.batches.submit(batch)
        uids = [f"{batch.batch_id}-{i}" for i in range(self._case.suspects)]
        for victim in ("first", "second"):
            await self._announce(victim, WorkerRole.SHARED)
            for uid in uids:
                assert isinstance(await self._store.rollouts.claim(uid, victim), Claim)
            for uid in uids:
                await self._store.reconciliation.take_back(uid, victim)
            await self._store.workers.leave(victim)
        return uids

    async def _announce(self, worker: str, role: WorkerRole) -> None:
        await self._store.workers.announce(worker, Announcement(role=role, host="h", pid=1, slots=SLOTS))


@asynccontextmanager
async def _empty_store() -> AsyncIterator[Store]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        server = subprocess.Popen(  # noqa: ASYNC220  nothing else runs here
            [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        store = Store.open(f"redis://127.0.0.1:{port}/0")
        try:
            with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200)) as client:
                client.ping()
            yield store
        finally:
            await store.close()
            server.kill()
            server.wait()


async def _row(case: Case, runs: int) -> Row:
    trials: list[Trial] = []
    for seed in range(runs):
        async with _empty_store() as store:
            trials.append(await simulate(store, Case(**{**vars(case), "seed": seed})))
    waits = [sorted(trial.cleared.values()) for trial in trials]
    return {
        "suspects": case.suspects,
        "poison": case.poison,
        "chance deaths per process-minute": case.chance,
        "kind": "with company" if case.company else "alone",
        "cleared p50, s": round(median(median(w) for w in waits), 1),
        "p95, s": round(median(quantiles(w, n=20)[-1] for w in waits), 1),
        "all, s": round(median(w[-1] for w in waits), 1),
        "deaths": median(trial.deaths for trial in trials),
        "starts": median(trial.starts for trial in trials),
        "innocents condemned, mean": round(mean(trial.innocent_condemned for trial in trials), 2),
    }


def main() -> None:
    """Simulates each case with some seeds and prints a table."""
    options = parser("suspects", __doc__)
    options.add_argument("--runs", type=int, default=20)
    chosen = options.parse_args()
    sizes = [(8, 1, 0.0)] if chosen.quick else [(8, 1, 1.0), (64, 1, 1.0), (256, 1, 0.0), (256, 1, 1.0), (256, 3, 5.0)]
    runs = 1 if chosen.quick else chosen.runs
    rows = [
        asyncio.run(_row(Case(suspects, poison, chance, company), runs))
        for suspects, poison, chance in sizes
        for company in (True, False)
    ]
    emit(
        "suspects",
        rows,
        chosen,
        title="Suspects on trial",
        measures=(
            f"Simulated seconds until innocent suspects have made progress, medians over the runs: three workers, one "
            f"isolated worker each, {START_SECONDS:g} s for its start, {TURN_SECONDS:g} s for a turn, "
            f"{NOTICE_SECONDS:g} s to notice a death. The scripts in Redis are the real ones."
        ),
        leaves_out="Everything that takes real time: see benchmarks.recovery and `make chaos`.",
    )


if __name__ == "__main__":
    main()
