"""A worker of the pool in this process: the product's `WorkerProcess` with everything that it runs, without Celery.

What it has otherwise than a process of its own: beats and lifeline are a task and no thread, graders run on the pool's
loop, suspects are tried by a further worker of this process, and tickets come from the broker in memory.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.inproc.broker import InprocPublisher, Message
from tests.inproc.clock import Process
from tests.inproc.trainer import TrainerTransport

from rolloutpool_common.capabilities.grading.wire import Grade
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.queue.celery_app import queue_name
from rolloutpool_common.store import StoreError, keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.lifeline import Lifeline
from rolloutpool_common.store.workers import BEAT_SECONDS
from rolloutpool_worker.capabilities.grading.base import Grader
from rolloutpool_worker.capabilities.grading.host import GraderHost
from rolloutpool_worker.capabilities.grading.opened import OpenGrading
from rolloutpool_worker.process.isolation import IsolatedRuns
from rolloutpool_worker.process.pulse import Pulse
from rolloutpool_worker.process.trial import try_suspects
from rolloutpool_worker.process.worker import Surroundings, WorkerProcess
from rolloutpool_worker.rollout.own_offer import own_digest
from rolloutpool_worker.rollout.services import Services, WorkerIdentity
from rolloutpool_worker.rollout.ticket import run_rollout
from rolloutpool_worker.rollout.tokenizer_loads import TokenizerLoads

if TYPE_CHECKING:
    from tests.inproc.pool import Pool

_log = logging.getLogger(__name__)


class LoopLifeline(Lifeline):
    """Subscription and beats as a task of the worker's."""

    def __init__(self, redis_url: str, name: str, heart: Pulse) -> None:
        self._connection = Connection(redis_url)
        self._name, self._pulse = name, heart
        self.seen = False
        self._first_test = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def tested(self) -> bool:
        """Whether it is subscribed."""
        return self._first_test.is_set()

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.get_running_loop().create_task(self._live())

    def stop(self) -> None:
        """Ends."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Returns when it is subscribed."""
        await self._first_test.wait()

    async def _live(self) -> None:
        subscription = self._connection.blocking().pubsub()
        try:
            await subscription.subscribe(keys.life(self._name))
            await subscription.get_message(timeout=10)
            self.seen = True
            self._first_test.set()
            while True:
                if (told := self._pulse.beat()) is not None:
                    with suppress(StoreError):
                        self._pulse.hear(await self._connection.script("beat", *told))
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            await subscription.aclose()
            await self._connection.close()


class LoopGraders(GraderHost):
    """Runs graders on the pool's loop, whose time is theirs."""

    async def _on_loop(
        self, grader: Grader, rollouts: Sequence[RolloutResult], options: Any, warnings: set[str]
    ) -> list[Grade]:
        return await self._guarded(grader, rollouts, options, warnings)


class LoopIsolatedRuns(IsolatedRuns):
    """Tries suspects in a further process of this pool."""

    def __init__(self, services: Services, parent: "InprocWorker") -> None:
        super().__init__(services)
        self._parent = parent

    async def _run_child(self) -> int:
        child = InprocWorker(self._parent.pool, WorkerRole.ISOLATED, self._parent)
        # The parent's death is no reason to die at once: it sees that it is gone, and drains.
        self._parent.process.on_death.append(child.terminate)
        child.process.spawn(child.live())
        code = await child.exit_code
        with suppress(StoreError):
            await self._services.store.workers.report_end(child.worker_id, ProcessEnd.of(code))
        return code


class InprocWorker:
    """One worker process."""

    def __init__(
        self, pool: "Pool", role: WorkerRole = WorkerRole.SHARED, parent: "InprocWorker | None" = None
    ) -> None:
        """Starts nothing yet."""
        self.pool = pool
        identity = WorkerIdentity.new()
        self.worker_id = identity.worker_id
        self.process = Process(self.worker_id, pool.loop)
        self.exit_code: asyncio.Future[int] = pool.loop.create_future()
        """Set when it has ended."""
        self.process.on_death.append(lambda: self._exit(-9))
        self.started = asyncio.Event()
        """Set when it is announced."""
        self._role, self._identity, self._parent = role, identity, parent
        self._work: WorkerProcess | None = None
        self._messages: set[Message] = set()
        self._stopping: asyncio.Task[None] | None = None

    @property
    def work(self) -> WorkerProcess:
        """The product's part, once it is begun."""
        assert self._work is not None
        return self._work

    async def live(self) -> None:
        """All its life; spawn this in its process."""
        try:
            await self._live()
        except Exception:
            _log.exception("worker %s could not start", self.worker_id)
            self._exit(1)
            self.process.kill()

    async def _live(self) -> None:
        pool, settings = self.pool, self.pool.worker_settings
        services = Services(
            settings, role=self._role, identity=self._identity, transport=TrainerTransport(pool.trainer)
        )
        services.tokenizers = pool.tokenizers
        services.tokenizer_loads = TokenizerLoads(pool.tokenizers, services.store, services.drain)
        grading = services.capabilities["grading"]
        assert isinstance(grading, OpenGrading)
        grading.host = LoopGraders(
            services.tool_host.watch, seconds=settings.grader_timeout, places=settings.grader_processes
        )
        lifelines: list[LoopLifeline] = []

        def lifeline(url: str, name: str, pulse: Pulse) -> Lifeline:
            lifelines.append(LoopLifeline(url, name, pulse))
            return lifelines[-1]

        self._work = WorkerProcess(
            settings,
            services=services,
            around=Surroundings(
                lifeline=lifeline,
                publisher=lambda store, settings: InprocPublisher(
                    store, pool.broker, per_message=settings.rollouts_per_ticket
                ),
                isolated_runs=lambda services: LoopIsolatedRuns(services, self),
                end=self.terminate,
            ),
        )
        await self._work.prepare()
        await lifelines[0].wait()
        await self._work.start()
        self.started.set()
        if self._role is WorkerRole.ISOLATED:
            assert self._parent is not None
            await try_suspects(services, self._parent.worker_id)
            return await self._stop(0)
        await self._consume(services)

    def terminate(self) -> None:
        """As a SIGTERM does: it drains and ends."""
        if self._stopping is None and not self.process.dead:
            self._stopping = self.process.spawn(self._stop(0))

    async def _stop(self, code: int) -> None:
        await self.started.wait()
        await self.work.drain()
        await self.work.stop()
        self._exit(code)
        self.process.kill()

    def _exit(self, code: int) -> None:
        if not self.exit_code.done():
            self.exit_code.set_result(code)
            self.pool.has_ended(self, code, self._messages)

    async def _consume(self, services: Services) -> None:
        broker, free = self.pool.broker, asyncio.Semaphore(services.settings.worker_slots)
        digest = own_digest()
        queues = [queue_name(priority, offer) for priority in Priority for offer in (digest, "") if offer or not digest]
        queues += [queue_name(priority) for priority in Priority if digest]
        runs: set[asyncio.Task[None]] = set()
        while not services.drain.begun:
            message = broker.take(queues)
            if message is None:
                await broker.arrival()
                continue
            for _ in message.uids:
                await free.acquire()
            self._messages.add(message)
            self.work.pulse.took()
            run = asyncio.create_task(self._run(services, message, free))
            runs.add(run)
            run.add_done_callback(runs.discard)

    async def _run(self, services: Services, message: Message, free: asyncio.Semaphore) -> None:
        tasks = [asyncio.create_task(run_rollout(services, uid)) for uid in message.uids]
        for task in tasks:
            task.add_done_callback(lambda _: free.release())
        await asyncio.gather(*tasks, return_exceptions=True)
        self._messages.discard(message)
