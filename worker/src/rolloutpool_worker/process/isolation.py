"""Suspected rollouts run alone in a process, so that a further crash harms no other rollout and proves the cause.

A rollout is a suspect after two workers died while they had it and it made no progress in between (`claim.lua`).

1. A shared worker that gets the ticket of a suspect is told "isolated" by the claim script. It starts a child process
   (`python -m rolloutpool_worker --isolated UID PARENT`), one at a time, and waits for it.
2. The child is a worker of its own with one slot: it announces itself, beats, claims the suspect and runs it. No Celery
   message reaches it.
3. The suspect is cleared as soon as it has made progress: it stops at its next border (`drain.RolloutStop`) and goes
   back to the queue for a shared worker. If the child dies instead, the reconciler knows which rollout it was.
4. The child then takes the suspect that has waited longest, because starting a process for each of them would let them
   wait for minutes where machines died often. It ends when no suspect waits.
5. The worker has chosen the child's id, and tells Redis how the child ended (`common/process/obituaries.py` does the
   same for workers). So the suspect's next attempt begins at once, and a kill from outside is not held against it.
6. The child passes the parent's SIGTERM on to itself (drain), and it also drains when its parent is gone, because then
   no other process would stop it.
"""

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress

from rolloutpool_common.process.obituaries import WORKER_ID_OPTION, new_worker_id
from rolloutpool_common.process.oom import OomKills
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import StoreError
from rolloutpool_worker.process.event_loop import watch
from rolloutpool_worker.process.worker import WorkerProcess
from rolloutpool_worker.rollout.attempt import run_rollout
from rolloutpool_worker.rollout.decision import TicketOutcome
from rolloutpool_worker.rollout.services import Services, WorkerIdentity
from rolloutpool_worker.settings import WorkerSettings

__all__ = ["OPTION", "IsolatedRuns", "serve"]

_log = logging.getLogger(__name__)

OPTION = "--isolated"
BUSY_SECONDS = 1.0
"""After so many seconds a suspect is tried again, where this worker has an isolated process already."""
PARENT_CHECK_SECONDS = 1.0


class IsolatedRuns:
    """The isolated processes that one worker starts, one at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._one_at_a_time = asyncio.Lock()

    async def run(self, uid: str) -> TicketOutcome:
        """Runs a suspect in an isolated process and waits for its end; postpones it where one is running already."""
        drain = self._services.drain
        if self._one_at_a_time.locked() or drain.begun:
            # If Redis fails here, the lease of 30 s that `claim.lua` gave the suspect brings it back.
            with suppress(StoreError):
                await self._services.store.rollouts.postpone(uid, BUSY_SECONDS)
            return TicketOutcome.POSTPONED
        async with self._one_at_a_time:
            worker_id = new_worker_id()
            kills = OomKills()
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rolloutpool_worker", OPTION, uid, str(os.getpid())),
                *(WORKER_ID_OPTION, worker_id),
                stdin=asyncio.subprocess.DEVNULL,
            )
            ended = asyncio.ensure_future(child.wait())
            # The child gets a SIGTERM for each one that this process got: first drain, then hurry.
            # If the child has ended, both waits return at once.
            for signalled in (drain.wait, drain.wait_hurried):
                waiting = asyncio.ensure_future(signalled())
                await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not ended.done():
                    child.send_signal(signal.SIGTERM)
            exit_code = await ended
            # It always was told to stop: by a signal, or because no suspect was left.
            oom = exit_code == -signal.SIGKILL and kills.take()
            end = ProcessEnd.of(exit_code, told_to_stop=True, oom=oom)
            if exit_code != 0:
                _log.warning("the isolated process of rollout %s ended: %s", uid, end)
            # If Redis fails here, the child's lost lifeline tells that it has ended.
            with suppress(StoreError):
                await self._services.store.workers.report_end(worker_id, end)
            return TicketOutcome.ISOLATED


async def serve(settings: WorkerSettings, identity: WorkerIdentity, uid: str, parent: int) -> None:
    """The inside of an isolated process: runs suspects until none waits, then exits.

    Args:
        settings: The same settings as the parent's.
        identity: As the parent chose it.
        uid: The suspect that the process was started for.
        parent: The process id of the worker that started it.
    """
    worker = WorkerProcess(settings, role=WorkerRole.ISOLATED, identity=identity)
    services = worker.services
    loop = asyncio.get_running_loop()
    watch(loop)
    ending = asyncio.Event()
    stopping: list[asyncio.Task[None]] = []

    async def end() -> None:
        ending.set()
        await worker.on_signal()

    async def end_without_parent() -> None:
        while True:
            # The system gives a process another parent when its own has died.
            if os.getppid() != parent:
                ending.set()
                return await worker.drain()
            await asyncio.sleep(PARENT_CHECK_SECONDS)

    loop.add_signal_handler(signal.SIGTERM, lambda: stopping.append(asyncio.create_task(end())))
    await worker.prepare()
    await worker.start()
    stopping.append(asyncio.create_task(end_without_parent()))
    suspect: str | None = uid
    try:
        while suspect is not None and not ending.is_set():
            # A task of its own: the API and a drain cancel the task that runs a claim, and this one must live to stop
            # the worker.
            await asyncio.create_task(run_rollout(services, suspect))
            suspect = await _next_suspect(services, after=suspect)
    finally:
        await worker.stop()
        # The parent reads nothing but the exit code, and the threads of libraries are not worth waiting for.
        sys.stderr.flush()
    os._exit(0)


async def _next_suspect(services: Services, *, after: str) -> str | None:
    with suppress(StoreError):
        first = await services.store.rollouts.first_suspect()
        # If the same one is still the first, it could not be claimed here; another worker will try it again.
        return None if first == after else first
    return None
