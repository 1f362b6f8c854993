"""Celery's side of a worker process: one thin task, and what the signals do.

1. Plug-ins and tokenizers are loaded, and Celery's consumer starts. Once it takes messages (`worker_ready`), the
   process announces itself: a worker that is announced and does not consume would look idle, and others get its work.
2. Celery's consumer takes a message when there is a slot for each rollout that the message brings (`slots`), and while
   it does not pause for other workers' sake (`pace`).
3. The task starts the rollouts as coroutines on the event loop and returns a future at once; no thread waits for them.
   Celery hears when they have ended (`pool`).
4. The first SIGTERM begins the drain, the second one the hurry (`rolloutpool_worker.drain`). Then Celery's pool waits
   for its tickets, and the process stops.

Celery's own time limits, revoke and soft shutdown have no effect on rollouts. Deadlines, cancel and drain are ours.
"""

import asyncio
import os
import signal
import socket
from concurrent.futures import Future, wait
from typing import Any, cast

from celery import Celery
from celery.apps.worker import Worker
from celery.signals import worker_ready, worker_shutdown, worker_shutting_down

from rolloutpool_common.queue.celery_app import PREFLIGHT_NAME, TASK_NAME, make_celery
from rolloutpool_common.store import check_addresses
from rolloutpool_common.store.keys import uid_of
from rolloutpool_worker.agents import termination
from rolloutpool_worker.agents import tool_calls as agent
from rolloutpool_worker.composition import CAPABILITIES, PLUGINS
from rolloutpool_worker.ending import TicketOutcome
from rolloutpool_worker.environments import ENVIRONMENTS
from rolloutpool_worker.plugins import Registry, import_plugins
from rolloutpool_worker.process.event_loop import EventLoop
from rolloutpool_worker.process.preflight import try_endpoints
from rolloutpool_worker.process.worker import WorkerProcess
from rolloutpool_worker.queue.celery_compat import LoopConsumer, log_signals, refuse_revokes
from rolloutpool_worker.queue.pace import Pace
from rolloutpool_worker.queue.pool import LoopPool, RolloutsFailed, RolloutsGoOn
from rolloutpool_worker.queue.slots import Slots
from rolloutpool_worker.rollout.own_offer import own_digest
from rolloutpool_worker.rollout.services import WorkerIdentity
from rolloutpool_worker.rollout.ticket import TicketEnd, run_rollout
from rolloutpool_worker.settings import WorkerSettings
from rolloutpool_worker.tools import TOOLS, calculator

HURRY_SECONDS = 10
"""From the second SIGTERM until the process ends itself, whatever it still does."""
ANNOUNCE_SECONDS = 10.0
"""How long a stop waits for an announcement on its way: one that came later would list a worker that is gone."""


class CeleryWorker:
    """Celery's app and worker, and the event loop with the process that runs the rollouts."""

    def __init__(self, settings: WorkerSettings, identity: WorkerIdentity | None = None) -> None:
        """Loads plug-ins and tokenizers; raises `RolloutPoolError`. The worker is announced once it takes messages."""
        # First, because the announcement lists the tools and agents, and names of queues follow from them.
        load_plugins(settings)
        check_addresses(settings.redis_urls)
        self._stopped = self._draining = False
        self._settings = settings
        self._slots = Slots(settings.worker_slots)
        self._pace = Pace()
        # A message can bring more rollouts than this worker has free slots. The rest of them waits here.
        self._places = asyncio.Semaphore(settings.worker_slots)
        self.app = self._make_app(settings)
        self._loop = EventLoop()
        self._process = self._loop.run(_prepared(settings, identity))
        self._services = self._process.services
        self._starting: Future[None] | None = None

    def _make_app(self, settings: WorkerSettings) -> Celery:
        app = make_celery(settings.celery_url, own_digest())

        @app.task(name=TASK_NAME, ignore_result=True)
        def ticket(refs: list[list[Any]]) -> Future[list[str]]:
            uids = [uid_of(batch_id, index) for batch_id, index in refs]
            # From here on `_run_one` gives back one slot for each rollout, however it ends.
            self._slots.take(len(uids))
            self._pace.took(len(uids), self._slots.in_use)
            self._process.pulse.took()
            return self._loop.submit(self._run(uids))

        @app.task(name=PREFLIGHT_NAME, ignore_result=True)
        def preflight(request_id: str, urls: list[str]) -> Future[None]:
            return self._loop.submit(try_endpoints(self._services, request_id, urls))

        for one in CAPABILITIES:
            for name in one.tasks:
                self._add_task(app, one.name, name)

        # Not weak: Celery would forget a bound method at once, because nothing else refers to it.
        worker_ready.connect(self._start, weak=False)
        worker_shutting_down.connect(self._drain, weak=False)
        worker_shutdown.connect(self.stop, weak=False)
        return app

    def _add_task(self, app: Celery, capability: str, name: str) -> None:
        """Has a capability do what the API asks for by this name."""

        @app.task(name=name, ignore_result=True)
        def work(subject: str) -> Future[None]:
            return self._loop.submit(self._services.capabilities[capability].tasks[name](subject))

    async def _run(self, uids: list[str]) -> list[str]:
        """Runs the rollouts of one ticket; returns what became of each, as Flower shows it."""
        # A task for each, because each can be cancelled alone.
        ends = await asyncio.gather(*(asyncio.create_task(self._run_one(uid)) for uid in uids))
        outcomes = [end.outcome for end in ends]
        if TicketOutcome.FAILED in outcomes:
            # Only kind and category: a message could quote what a trainer or a model has said.
            pairs = zip(uids, (end.failure for end in ends), strict=True)
            why = [f"{uid} {failure.kind} {failure.category}" for uid, failure in pairs if failure is not None]
            failed = outcomes.count(TicketOutcome.FAILED)
            raise RolloutsFailed(f"{failed} of {len(ends)} rollouts failed: {', '.join(why)}")
        if any(outcome.goes_on for outcome in outcomes):
            raise RolloutsGoOn(", ".join(outcomes))
        return [outcome.value for outcome in outcomes]

    async def _run_one(self, uid: str) -> TicketEnd:
        try:
            async with self._places:
                if self._services.drain.begun:
                    return TicketEnd(TicketOutcome.DRAINING)
                return await run_rollout(self._services, uid)
        finally:
            # Also for a rollout that was refused or has failed, else this worker would take fewer and fewer.
            self._slots.give()

    def worker(self) -> Worker:
        """Makes Celery's worker."""
        settings = self._settings
        log_signals()
        refuse_revokes()
        # Not `worker_main`, which imports Celery's whole command line: 12 MB and a tenth of a worker's start.
        worker = self.app.Worker(
            pool_cls=LoopPool,
            consumer_cls=LoopConsumer,
            concurrency=settings.worker_slots,
            # Workers need nothing of each other: the claims in Redis keep them apart.
            without_gossip=True,
            without_mingle=True,
            loglevel=settings.log_level.upper(),
            # Its banner is plain text among the log's lines. What it says is in our line of the start.
            quiet=True,
            hostname=f"worker-{os.getpid()}@{socket.gethostname()}",
        )
        pool = cast(Any, worker).pool
        pool.slots, pool.pace = self._slots, self._pace
        return worker

    def _start(self, **_: Any) -> None:
        """Announces the process; Celery's consumer takes messages from now on. Its thread does not wait for Redis."""
        self._starting = self._loop.submit(self._process.start())

    def _drain(self, **_: Any) -> None:
        """Handles each SIGTERM. Celery's pool waits until all tickets have ended."""
        if self._draining:
            # If the loop or a plug-in's thread hangs, nothing is given back any more. This signal ends such a process.
            signal.alarm(HURRY_SECONDS)
        self._draining = True
        self._loop.submit(self._process.on_signal())

    def stop(self, **_: Any) -> None:
        """Stops the process, after Celery's last thread has ended; does nothing the second time."""
        if self._stopped:
            return
        self._stopped = True
        if self._starting is not None:
            wait([self._starting], timeout=ANNOUNCE_SECONDS)
        # After a SIGTERM this returns at once. Where Celery has ended otherwise, nothing is drained yet.
        self._loop.run(self._process.drain())
        self._loop.run(self._process.stop())
        self._loop.stop()


async def _prepared(settings: WorkerSettings, identity: WorkerIdentity | None) -> WorkerProcess:
    process = WorkerProcess(settings, identity=identity)
    await process.prepare()
    return process


def load_plugins(settings: WorkerSettings) -> None:
    """Registers the tools, agents, termination strategies, environments and other plug-ins of this process."""
    calculator.set_delay(*settings.calculator_delay_ms)
    registries: list[Registry[Any]] = [TOOLS, agent.AGENTS, termination.TERMINATION, ENVIRONMENTS, *PLUGINS.values()]
    for registry in registries:
        registry.load_entry_points()
    import_plugins(settings.plugins)
    # After the plug-ins, whose names the operator may not take.
    for capability in CAPABILITIES:
        capability.load(settings)
