"""The pool: an API, its chores, workers, a broker and a trainer on one loop, over a Redis in memory or a real one.

    pool = Pool(loop, chance, URL)
    await pool.start()
    uids = await pool.submit({"rollouts": [...]})
    await pool.ended(uids, seconds=600)

Whatever dies is started again by the pool, as a machine's supervisor would: a worker under a new id, an API with a new
application. What a worker's end is reported as, or whether it is at all, is a matter of chance.
"""

import asyncio
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
from tests.inproc.broker import Broker, InprocPublisher, Message
from tests.inproc.clock import Killed, PoolLoop, Process, current
from tests.inproc.trainer import Trainer
from tests.inproc.worker import InprocWorker
from tests.support.secrets import SECRETS, secrets_file

from rolloutpool_api.app import create_app
from rolloutpool_api.reconciler import PeriodicTask
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.process import failpoints
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_worker.settings import WorkerSettings

RESTART_SECONDS = 2.0
ANSWER_SECONDS = 20.0
"""After this time a client asks again."""


class Api:
    """One API process: its application, without a socket, and its chores as tasks of the pool's loop."""

    def __init__(self, pool: "Pool") -> None:
        """Starts nothing yet."""
        self.process = Process("api", pool.loop)
        self._pool = pool
        settings = ApiSettings(redis_url=pool.redis_url, secrets_file=secrets_file(), allowed_targets="*,0.0.0.0/0")
        self.app = create_app(settings)
        self.services = self.app.state.services
        store = self.services.store
        self._store: Store = store
        self._publisher = InprocPublisher(store, pool.broker, per_message=settings.rollouts_per_ticket)
        self._rounds = 0
        self._leads = False
        self.publish = PeriodicTask("publish", self._publish)

    async def live(self) -> None:
        """Begins everything; spawn this in its process."""
        pool, store = self._pool, self._store
        await store.signals.start()
        watch = store.watch(stalled_s=60.0, on_removed=lambda _: self.publish.wake())

        async def look() -> None:
            self._leads = False
            self._leads = await watch.look()

        async def reconcile() -> None:
            report = await store.reconciliation.run_once()
            pool.strays += report.strays

        self.publish.start()
        PeriodicTask("look at workers", look, period_s=lambda: watch.pause_s).start()
        PeriodicTask("reconcile", reconcile).start()

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Has it answer one request."""
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9000") as client:
            return await client.request(method, path, **options)

    async def _publish(self) -> None:
        if self._leads:
            await self._publisher.follow_offers()
        await self._publisher.pump()
        self._rounds += 1
        if self._leads and self._rounds % 5 == 0:
            await self._publisher.recover()


class Pool:
    """All of it."""

    def __init__(
        self, loop: PoolLoop, chance: random.Random, redis_url: str, trainer: Trainer, tokenizers: TokenizerCache
    ) -> None:
        """Starts nothing yet."""
        self.loop, self.chance, self.redis_url = loop, chance, redis_url
        self.trainer, self.tokenizers = trainer, tokenizers
        self.broker = Broker(loop, chance)
        self.worker_settings = WorkerSettings(
            redis_url=redis_url, worker_slots=8, secrets_file=secrets_file(), token_pieces_mb=0, trainer_attempts=5
        )
        self.workers: list[InprocWorker] = []
        self.api: Api | None = None
        self.store = Store.open(redis_url, secrets=SECRETS)
        """As the test sees it, on connections of its own."""
        self.harmed: set[str] = set()
        """Workers to which something has happened, so that they may be declared dead."""
        self.strays = 0
        """What the audit found open and nowhere."""
        self.kills: list[str] = []
        """What was killed, and where."""
        self.death_rate = 0.0
        """How often a worker dies when it has sent a command to Redis."""
        self.failpoints: dict[str, float] = {}
        """How often a process dies that passes one of these."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def start(self, workers: int) -> None:
        """Starts an API and workers."""
        failpoints.watch(self._pass)
        self.start_api()
        for _ in range(workers):
            self.start_worker()
        for worker in self.workers:
            await worker.started.wait()

    def start_api(self) -> None:
        """Starts the API, or another one in its place."""
        self.api = api = Api(self)
        api.process.on_death.append(lambda: self._later(self.start_api))
        api.process.spawn(api.live())

    def start_worker(self) -> None:
        """Starts one more worker."""
        worker = InprocWorker(self)
        self.workers.append(worker)
        worker.process.spawn(worker.live())

    def kill(self, process: Process, why: str) -> None:
        """Kills a process."""
        self.harmed.add(process.name)
        self.kills.append(f"{process.name.rpartition('-')[2]} {why}")
        process.kill()

    def has_ended(self, worker: InprocWorker, code: int, messages: set[Message]) -> None:
        """Called when a worker has ended: its parent reports it, or its machine is gone with it."""
        self.harmed.add(worker.worker_id)
        if self._closing:
            return
        for message in messages:
            if self.chance.random() < 0.5:
                self._after(self.chance.uniform(1, 60), partial(self.broker.put, message))
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        if code == 0 or self.chance.random() < 0.7:
            number = 0 if code == 0 else -self.chance.choice((signal.SIGKILL, signal.SIGSEGV))
            end = ProcessEnd.of(number, told_to_stop=code == 0)
            self._begin(self.store.workers.report_end(worker.worker_id, end))
        self._later(self.start_worker)

    async def submit(self, body: dict[str, Any], key: str) -> list[str]:
        """Submits a batch as a client does, again and again until it is answered; returns the uids."""
        while True:
            answer = await self.ask("POST", "/v1/batches", json=body, headers={"Idempotency-Key": key})
            if answer is not None and answer.status_code in (200, 202):
                uids: list[str] = answer.json()["rollouts"]
                assert self.api is not None
                self.api.publish.wake()
                return uids
            assert answer is None or answer.status_code >= 500 or answer.status_code == 429, answer.text
            await asyncio.sleep(1)

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Asks the API once; None where it did not answer."""
        if self.api is None or self.api.process.dead:
            return None
        asked = self.api.process.spawn(self.api.ask(method, path, **options))
        done, _ = await asyncio.wait({asked}, timeout=ANSWER_SECONDS)
        return asked.result() if done and not self.api.process.dead else None

    async def close(self) -> None:
        """Kills everything."""
        self._closing = True
        failpoints.watch()
        for worker in tuple(self.workers):
            worker.process.kill()
        if self.api is not None:
            self.api.process.on_death.clear()
            self.api.process.kill()
        for task in self._tasks:
            task.cancel()
        await self.store.close()

    def _pass(self, name: str) -> None:
        process = current()
        if process is not None and self.chance.random() < self.failpoints.get(name, 0.0):
            self.kill(process, name)
            raise Killed

    def has_sent(self, process: Process, vital: bool) -> None:
        """Called when a process has sent a command: it may be its last one, and the rarer ones are so more often."""
        rate = self.death_rate * (20 if vital else 1)
        if self.chance.random() < rate and any(worker.process is process for worker in self.workers):
            self.kill(process, "after a command")

    def _later(self, start: Any) -> None:
        def begin() -> None:
            if not self._closing:
                start()

        self._after(self.chance.uniform(0.1, RESTART_SECONDS), begin)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        # Not in the context of the one who asks for it: it may be dead by then.
        self.loop.call_later(seconds, action, context=self.loop.outside)

    def _begin(self, work: Any) -> None:
        task = self.loop.outside.copy().run(self.loop.create_task, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
