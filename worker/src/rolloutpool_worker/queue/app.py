"""Celery's side of a worker: one thin task, and the process's life from its start to its last signal.

A task's rollouts run on the loop, and Celery is told when they end (`pool`). Its time limits, revoke and soft shutdown
do nothing to them, so deadlines, cancel and drain are our own.
"""

import asyncio
import os
import signal
import socket
from concurrent.futures import Future
from typing import Any, cast

from celery import Celery
from celery.apps.worker import Worker
from celery.signals import worker_shutdown, worker_shutting_down

from rolloutpool_common.queue.celery_app import PREFLIGHT_NAME, TASK_NAME, make_celery
from rolloutpool_common.queue.publisher import most_per_message
from rolloutpool_common.store.keys import uid_of
from rolloutpool_worker.agents import termination
from rolloutpool_worker.agents import tool_calls as agent
from rolloutpool_worker.plugins import import_plugins
from rolloutpool_worker.process.event_loop import EventLoop
from rolloutpool_worker.process.isolation import IsolatedRuns
from rolloutpool_worker.process.preflight import try_endpoints
from rolloutpool_worker.process.worker import WorkerProcess
from rolloutpool_worker.queue.celery_compat import LoopConsumer
from rolloutpool_worker.queue.pool import LoopPool
from rolloutpool_worker.queue.slots import Slots
from rolloutpool_worker.rollout.attempt import run_rollout
from rolloutpool_worker.rollout.decision import TicketOutcome
from rolloutpool_worker.settings import WorkerSettings
from rolloutpool_worker.tools import TOOLS, calculator

__all__ = ["CeleryWorker", "load_plugins"]

HURRY_SECONDS = 10
"""After the second SIGTERM."""


class CeleryWorker:
    """Celery's app and worker, and the event loop with the process that runs the rollouts."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Loads plug-ins and tokenizers, and makes the worker known; raises `RolloutPoolError`."""
        load_plugins(settings)
        self._stopped = self._draining = False
        self._settings = settings
        self._slots = Slots(
            settings.worker_slots, most_per_message(settings.worker_slots, settings.rollouts_per_ticket)
        )
        # For messages that bring more than there is room for: they were made when all workers were larger.
        self._places = asyncio.Semaphore(settings.worker_slots)
        self.app = self._make_app(settings)
        self._loop = EventLoop()
        self._process = self._loop.run(_started(settings))
        self._services = self._process.services
        self._isolated_runs = IsolatedRuns(self._services)

    def _make_app(self, settings: WorkerSettings) -> Celery:
        app = make_celery(settings.celery_url)

        @app.task(name=TASK_NAME, ignore_result=True)
        def ticket(refs: list[list[Any]]) -> Future[list[TicketOutcome]]:
            uids = [uid_of(batch_id, index) for batch_id, index in refs]
            # Given back one by one from here on, whatever happens.
            self._slots.take(len(uids))
            return self._loop.submit(self._run(uids))

        @app.task(name=PREFLIGHT_NAME, ignore_result=True)
        def preflight(request_id: str, urls: list[str]) -> Future[None]:
            return self._loop.submit(try_endpoints(self._services, request_id, urls))

        worker_shutting_down.connect(self._drain, weak=False)
        worker_shutdown.connect(self.stop, weak=False)
        return app

    async def _run(self, uids: list[str]) -> list[TicketOutcome]:
        """Runs the rollouts of one ticket; returns what became of each."""
        # Tasks of their own, because each can be cancelled alone.
        return await asyncio.gather(*(asyncio.create_task(self._run_one(uid)) for uid in uids))

    async def _run_one(self, uid: str) -> TicketOutcome:
        try:
            async with self._places:
                if self._services.drain.begun:
                    return TicketOutcome.DRAINING
                outcome = await run_rollout(self._services, uid)
                return await self._isolated_runs.run(uid) if outcome is TicketOutcome.ISOLATED else outcome
        finally:
            self._slots.give()

    def worker(self) -> Worker:
        """Celery's side, ready to start."""
        settings = self._settings
        # Not `worker_main`, which imports Celery's whole command line: 12 MB and a tenth of a worker's start.
        worker = self.app.Worker(
            pool_cls=LoopPool,
            consumer_cls=LoopConsumer,
            concurrency=settings.worker_slots,
            without_gossip=True,
            without_mingle=True,
            loglevel=settings.log_level.upper(),
            hostname=f"worker-{os.getpid()}@{socket.gethostname()}",
        )
        cast(Any, worker).pool.slots = self._slots
        return worker

    def _drain(self, **_: Any) -> None:
        """On each SIGTERM. Celery's pool waits for its tickets."""
        if self._draining:
            # Whatever does not even give back what it has, a wedged loop or a plug-in's thread, ends by this signal.
            signal.alarm(HURRY_SECONDS)
        self._draining = True
        self._loop.submit(self._process.on_signal())

    def stop(self, **_: Any) -> None:
        """After Celery's last thread has come back; a second time it does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self._loop.run(self._process.drain())
        self._loop.run(self._process.stop())
        self._loop.stop()


async def _started(settings: WorkerSettings) -> WorkerProcess:
    process = WorkerProcess(settings)
    await process.start()
    return process


def load_plugins(settings: WorkerSettings) -> None:
    """Makes this process know its tools, agents and termination strategies; raises `RolloutPoolError`."""
    calculator.set_delay(*settings.calculator_delay_ms)
    for registry in (TOOLS, agent.AGENTS, termination.TERMINATION):
        registry.load_entry_points()
    import_plugins(settings.plugins)
