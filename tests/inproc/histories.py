"""Histories: a seed makes a pool's work and its troubles, a judge looks on, and what it found is the outcome.

1. **Work.** Batches of all sorts come at any time: plain ones and some with tools, groups, graders, deadlines, a
   webhook, a run that is paused and resumed; at trainers of three sorts. Some are cancelled.
2. **Trouble.** Tickets get lost, come late or twice. The trainer is slow or busy, refuses, or loses its reply. Workers
   and the API are killed, at failpoints and between any two steps; they are frozen, condemned and drained.
3. **Calm.** The trouble ends. Everything must end now, within `LIMIT` seconds of the pool's time.
"""

import asyncio
import gc
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.inproc import graders
from tests.inproc.broker import BrokerFaults
from tests.inproc.clock import Clock, PoolLoop, Process, seconds, seed_chance
from tests.inproc.fake_redis import URL, Keys, MemoryRedis
from tests.inproc.judge import Judge, Rollout, TokenJudge
from tests.inproc.pool import Pool
from tests.inproc.trainer import HOOK, KEEPS, ONCE, RENDERS, Trainer, TrainerFaults, question

from rolloutpool_common.process.failpoints import NAMES
from rolloutpool_common.rendering import TokenizerCache, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_worker.tools import TOOLS, calculator

LIMIT = 250.0
"""Seconds of the pool in which everything ends once the trouble is over."""
IDLE = 90.0
LATE = 35.0
"""So long after a request its commands may arrive: the API was frozen, its connection cut, or it is dead."""
RARE = frozenset(name for name in NAMES if not name.endswith(("_turn", "_tools", "_call")))
"""Failpoints that few rollouts pass."""


@dataclass
class Outcome:
    """Of one history."""

    seed: int
    faults: list[str]
    rollouts: int
    statuses: dict[str, int]
    kills: list[str]
    real_s: float
    pool_s: float


@dataclass
class World:
    """What all histories of this process share."""

    clock: Clock | None
    real_redis: Callable[[], tuple[str, Keys]] | None = None
    """Empties a real Redis, and says where it is."""

    def __post_init__(self) -> None:
        TOOLS.load_entry_points()
        calculator.set_delay(1, 400)
        self.tokenizer = load_tokenizer("rolloutpool/tiny")
        self.tokenizers = TokenizerCache(4)
        self.tools = [tool.definition.model_dump(exclude_none=True) for tool in TOOLS.values()]
        self.tokens = TokenJudge(TINY_TOKENIZER, self.tools)

    def play(self, seed: int) -> Outcome:
        """Plays one history on a loop of its own."""
        seed_chance(seed)
        graders.reset()
        # Remains of the killed must not be collected while the loop runs: their code would run on.
        gc.disable()
        loop = PoolLoop(self.clock)
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda *_: None)
        begun, at = seconds(), loop.time()
        history: History | None = None

        async def whole() -> None:
            nonlocal history
            history = History(self, loop, seed)
            await history.play()

        try:
            loop.run_until_complete(whole())
            assert history is not None
            faults = history.judge.faults
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            faults = [*(history.judge.faults if history else ()), f"broken off: {traceback.format_exc()}"]
        outcome = Outcome(
            seed,
            faults,
            len(history.judge.rollouts) if history else 0,
            dict(history.judge.statuses) if history else {},
            history.pool.kills if history else [],
            seconds() - begun,
            loop.time() - at,
        )
        del history
        _bury(loop)
        return outcome


def _bury(loop: PoolLoop) -> None:
    """Lets what was killed be collected, in silence: its code meets a world that is gone."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    loop.bury()
    asyncio.set_event_loop(None)
    loop.close()
    with warnings.catch_warnings(action="ignore"):
        gc.collect()
    sys.unraisablehook = hook


@dataclass
class _Batch:
    uids: list[str]
    run: str | None = None


class History:
    """One history."""

    def __init__(self, world: World, loop: PoolLoop, seed: int) -> None:
        self._chance = chance = random.Random(seed)
        self._loop, self._seed = loop, seed
        self._patient = world.clock is not None
        """Whether minutes cost nothing."""
        memory: MemoryRedis | None = None
        if world.real_redis is None:
            memory = MemoryRedis(loop, random.Random(f"{seed} of the network"))
            url, keys = URL, memory.look()
        else:
            url, keys = world.real_redis()
        trainer = Trainer(loop, random.Random(f"{seed} of the trainer"), world.tokenizer, world.tools)
        self.pool = Pool(loop, random.Random(f"{seed} of the pool"), url, trainer, world.tokenizers)
        self._memory = memory
        if memory is not None:
            memory.on_sent = self.pool.has_sent
        self.judge = Judge(keys, trainer, world.tokens)
        if memory is not None:
            memory.door = self.judge.door
        self._batches: list[_Batch] = []
        self._paused: set[str] = set()
        self._steered: dict[str, float] = {}
        """By run that was ever paused: until when such a command may arrive, also after it was resumed."""
        self._frozen_until = 0.0
        self._hard = chance.random() < 0.8
        """Whether there is trouble at all."""

    async def play(self) -> None:
        """Plays it from its beginning to its end."""
        chance, pool = self._chance, self.pool
        await pool.start(chance.randint(2, 4))
        if self._hard:
            self._begin_trouble()
        for _ in range(chance.randint(15, 40)):
            await asyncio.sleep(chance.choice((0.02, 0.2, 1.0)) * chance.random())
            await chance.choices(
                (self._submit, self._trouble, self._steer, self._cancel), (4, 6 if self._hard else 0, 1, 2)
            )[0]()
            self.judge.look(12)
        await self._calm()
        await self._until_ended()
        # Who was frozen goes on now, and must not write any more. Pushes may have waited for their receiver.
        await asyncio.sleep(max(self._frozen_until - self._loop.time(), 0) + 3)
        await self._until_pushed()
        if self._patient and chance.random() < 0.3:
            # Longer than a worker may be silent.
            await asyncio.sleep(IDLE)
        self.judge.deaths(pool.harmed)
        results = await self._read()
        self.judge.end(results)
        if pool.strays:
            self.judge.faults.append(f"places: the audit found {pool.strays} strays")
        for batch in self._batches:
            # Late tickets, as after a broker's own redelivery: they come before the deletion, during it and after it.
            pool.broker.repeat(batch.uids, within_s=0.1)
            await pool.store.batches.delete(batch.uids[0].rpartition("-")[0])
        await asyncio.sleep(1.5)
        self.judge.remains()
        await pool.close()

    async def _submit(self) -> None:
        chance = self._chance
        size, server = chance.randint(1, 12), chance.choices((KEEPS, RENDERS, ONCE), (6, 2, 2))[0]
        turns = [chance.choice((1, 1, 2, 3, 4)) for _ in range(size)]
        items: list[dict[str, Any]] = [
            {
                "messages": [{"role": "user", "content": question(chance, n)}],
                "rollout_id": f"{self._seed}-{len(self.judge.rollouts)}-{i}",
            }
            for i, n in enumerate(turns)
        ]
        defaults: dict[str, Any] = {"tokenizer_name": "rolloutpool/tiny", "server_url": server}
        body: dict[str, Any] = {
            "defaults": defaults,
            "rollouts": items,
            "priority": chance.choice(("high", "default", "low")),
        }
        may_end = {"completed"}
        restartable, promised = chance.random() < 0.2, server != ONCE and chance.random() < 0.8
        defaults |= {"restartable": restartable, "idempotent": promised}
        grader = chance.choices((None, "sampled_ids", "sampled_ids_of_group"), (6, 2, 2))[0]
        if grader is not None:
            defaults["grader"] = {"name": grader, "options": round(chance.uniform(0, 3), 3)}
        if grader == "sampled_ids_of_group" or chance.random() < 0.3:
            for i, item in enumerate(items):
                item["group"] = f"g{i // 4}"
            if grader is None and chance.random() < 0.5:
                body["group"] = {"min_usable": 1, "late": "cancel"}
                may_end |= {"cancelled"}
        if chance.random() < 0.15:
            defaults["deadline_seconds"] = round(chance.uniform(1, 30), 2)
            may_end |= {"expired"}
            # A group that is not complete is graded without those that have expired.
        run = chance.choice(("r1", "r2")) if chance.random() < 0.4 else None
        if run is not None:
            body["run"] = run
        pushed = chance.random() < 0.2
        if pushed:
            body["delivery"] = {"callback_url": f"{HOOK}/hook", "secret": "a secret of tests"}
        uids = await self.pool.submit(body, f"{self._seed}-{len(self._batches)}")
        for uid, n in zip(uids, turns, strict=True):
            self.judge.rollouts[uid] = Rollout(
                *(uid, server, n, frozenset(may_end), promised, restartable, grader),
                pushed=pushed and may_end == {"completed"},
            )
        self._batches.append(_Batch(uids, run))

    async def _cancel(self) -> None:
        """Somebody cancels a batch, or one rollout."""
        if not self._batches or self._chance.random() < 0.4:
            return
        batch = self._chance.choice(self._batches)
        whole = self._chance.random() < 0.5
        uids = batch.uids if whole else [self._chance.choice(batch.uids)]
        for uid in uids:
            rollout = self.judge.rollouts[uid]
            rollout.may_end, rollout.pushed = rollout.may_end | {"cancelled"}, False
        path = f"/v1/batches/{uids[0].rpartition('-')[0]}" if whole else f"/v1/rollouts/{uids[0]}"
        await self.pool.ask("DELETE", path)

    async def _steer(self) -> None:
        """A run is paused, or goes on."""
        run = self._chance.choice(("r1", "r2"))
        if run in self._paused:
            self._paused.discard(run)
            await self._resume(run)
        else:
            self._paused.add(run)
            self._steered[run] = self._loop.time() + LATE
            await self.pool.ask("POST", f"/v1/runs/{run}/pause")

    async def _resume(self, run: str) -> None:
        path = f"/v1/runs/{run}/resume"
        while (answer := await self.pool.ask("POST", path)) is None or answer.status_code >= 500:  # noqa: ASYNC110  as a client does
            await asyncio.sleep(1)

    def _begin_trouble(self) -> None:
        chance, pool = self._chance, self.pool
        pool.broker.faults = BrokerFaults(*(chance.choice((0, 0.1, 0.3)) for _ in range(3)))
        rates = [chance.choice((0, 0.05, 0.15)) for _ in range(4)]
        pool.trainer.faults = TrainerFaults(*rates)
        for name in sorted(NAMES):
            pool.failpoints[name] = chance.choice((0, 0, 0.02, 0.2) if name in RARE else (0, 0, 0.005, 0.03))
        pool.death_rate = chance.choice((0, 0.0003, 0.002))
        if self._memory is not None:
            self._memory.slow = chance.choice((0, 0.002, 0.01))
            self._memory.breaks = chance.choice((0, 0.001, 0.005))

    async def _trouble(self) -> None:
        """Something happens to a process."""
        chance, pool = self._chance, self.pool
        living = [worker for worker in pool.workers if worker.started.is_set() and not worker.process.dead]
        kind = chance.choices(
            ("kill", "freeze", "condemn", "drain", "kill api", "freeze api", "none"), (4, 3, 4, 2, 1, 1, 4)
        )[0]
        if kind == "kill api" and pool.api is not None:
            pool.kill(pool.api.process, "at any point")
        elif kind == "freeze api" and pool.api is not None:
            self._freeze(pool.api.process, chance.uniform(0.5, 12))
        elif living and kind != "none":
            worker = chance.choice(living)
            match kind:
                case "kill":
                    pool.kill(worker.process, "at any point")
                case "freeze":
                    self._freeze(
                        worker.process, chance.choice((3, 30, 80) if self._patient else (3,)) * chance.random()
                    )
                case "condemn":
                    pool.harmed.add(worker.worker_id)
                    await pool.store.workers.condemn(worker.worker_id)
                    # It does not hear of it yet, and goes on with what others have by then.
                    if chance.random() < 0.7:
                        self._freeze(worker.process, chance.uniform(0.5, 6))
                case "drain":
                    worker.terminate()

    def _freeze(self, process: Process, seconds: float) -> None:
        self.pool.harmed.add(process.name)
        self._frozen_until = max(self._frozen_until, self._loop.time() + seconds)
        process.freeze(seconds)

    async def _calm(self) -> None:
        """The trouble ends."""
        pool = self.pool
        pool.broker.faults, pool.trainer.faults, pool.failpoints = BrokerFaults(), TrainerFaults(), {}
        pool.death_rate = 0.0
        if self._memory is not None:
            self._memory.slow = self._memory.breaks = 0.0
        if self._steered:
            await asyncio.sleep(max(*self._steered.values(), self._loop.time()) - self._loop.time())
        for run in sorted(self._steered):
            await self._resume(run)
        if not self._batches:
            await self._submit()

    async def _until_ended(self) -> None:
        end = self._loop.time() + LIMIT
        while self._loop.time() < end and self.judge.open:
            await asyncio.sleep(0.5)
            self.judge.look(3)

    async def _until_pushed(self) -> None:
        due = [uid for uid, rollout in self.judge.rollouts.items() if rollout.pushed]
        end = self._loop.time() + LIMIT
        while self._loop.time() < end and any(not self.pool.trainer.pushed[uid] for uid in due):  # noqa: ASYNC110  likewise
            await asyncio.sleep(5)

    async def _read(self) -> dict[str, Any]:
        """Reads all batches, as a client does."""
        results: dict[str, Any] = {}
        for batch in self._batches:
            path, cursor, complete = f"/v1/batches/{batch.uids[0].rpartition('-')[0]}/results", "0", False
            for _ in range(100):
                answer = await self.pool.ask("GET", path, params={"cursor": cursor, "limit": 7})
                if answer is None:
                    await asyncio.sleep(1)
                    continue
                page = answer.json()
                for item in page["items"]:
                    uid = item["result"]["uid"]
                    results[uid] = item["result"]
                    if uid in self.judge.rollouts:
                        self.judge.rollouts[uid].times_seen += 1
                cursor, complete = page["next_cursor"], page["complete"]
                if complete or not page["items"]:
                    break
        return results
