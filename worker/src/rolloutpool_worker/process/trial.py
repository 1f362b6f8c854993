"""The inside of an isolated process: it tries suspects, one cohort after the other, and runs nothing else.

1. It is a worker of its own: it announces itself and beats, so that its death is noticed like any other's. No Celery
   message reaches it.
2. It takes a cohort of suspects (`store/trials.py`) and runs them at once. Those that make progress stop at their next
   border (`drain.RolloutStop`) and go back to the queue; those that end, end here.
3. Then it takes the next cohort. A start costs more than a second, so it stays for `LINGER_SECONDS` when none waits.
4. If it dies, the reconciler finds its cohort among its claims, and knows who may have been the cause.
5. It drains at SIGTERM, and when its parent is gone, because then no other process would stop it.
"""

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from contextlib import ExitStack

from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import StoreError
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.process.event_loop import watch
from rolloutpool_worker.process.worker import WorkerProcess
from rolloutpool_worker.rollout.services import Services, WorkerIdentity
from rolloutpool_worker.rollout.ticket import run_rollout
from rolloutpool_worker.settings import WorkerSettings

_log = logging.getLogger(__name__)

PARENT_CHECK_SECONDS = 1.0
LINGER_SECONDS = 4.0
"""How long it waits for suspects before it ends. After a death, those of that cohort come back in a second or two."""
LOOK_SECONDS = 0.25
"""Between two looks for suspects meanwhile."""


async def serve(settings: WorkerSettings, identity: WorkerIdentity, parent_pid: int, parent_id: str) -> None:
    """Tries suspects until none has waited for a while, then exits."""
    worker = WorkerProcess(settings, role=WorkerRole.ISOLATED, identity=identity)
    loop = asyncio.get_running_loop()
    watch(loop)
    stopping: list[asyncio.Task[None]] = []

    async def drain_without_parent() -> None:
        # The system gives a process another parent when its own has died.
        while True:
            if os.getppid() != parent_pid:
                return await worker.drain()
            await asyncio.sleep(PARENT_CHECK_SECONDS)

    loop.add_signal_handler(signal.SIGTERM, lambda: stopping.append(asyncio.create_task(worker.on_signal())))
    await worker.prepare()
    await worker.start()
    stopping.append(asyncio.create_task(drain_without_parent()))
    try:
        await try_suspects(worker.services, parent_id)
    finally:
        await worker.stop()
        # The parent reads nothing but the exit code, and the threads of libraries are not worth waiting for.
        sys.stderr.flush()
    os._exit(0)


async def try_suspects(services: Services, parent_id: str) -> None:
    """Tries one cohort after the other; returns when no suspect has waited for a while, or the drain begins."""
    last = time.monotonic()
    # Every other cohort begins with who has waited longest, so that nobody waits for ever.
    for number in itertools.count():
        if services.drain.begun or time.monotonic() - last > LINGER_SECONDS:
            return
        if await _try_cohort(services, parent_id, company_first=number % 2 == 0):
            last = time.monotonic()
        else:
            await asyncio.sleep(LOOK_SECONDS)


async def _try_cohort(services: Services, parent_id: str, *, company_first: bool) -> bool:
    """Takes a cohort and runs it; returns whether there was one."""
    with ExitStack() as held:
        # In the register before Redis has them, as for any claim.
        tokens = [held.enter_context(services.claims.claiming()) for _ in range(services.settings.worker_slots)]
        try:
            cohort = await retry_store(
                services.drain,
                "suspects",
                lambda: services.store.trials.take(services.worker_id, parent_id, tokens, company_first=company_first),
            )
        except StoreError:
            return False
        # A task for each: the API and a drain cancel the task that runs a claim, and this one must live.
        runs = [asyncio.create_task(run_rollout(services, uid, token=token)) for uid, token in cohort]
        for outcome in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.warning("a suspect ended with %s", type(outcome).__name__)
    return bool(cohort)
