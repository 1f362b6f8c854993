"""A rollout alone in a process, because two workers died while they had it and it got nowhere.

If it is the rollout that kills them, the next death takes nobody along, and the reconciler knows whose it was. The
process is a worker of its own with one slot: it announces itself, beats, and has one rollout at a time. As soon as that
got further it is cleared and goes back to the queue, and the one that has waited longest takes its place: starting a
process for each would let them wait for minutes where machines died often. It ends when nobody waits; and it drains
when the worker that started it is gone, because nobody would stop it.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from rolloutpool_common.store import StoreError
from rolloutpool_worker.drain import Drain
from rolloutpool_worker.process.event_loop import watch
from rolloutpool_worker.process.worker import Runtime
from rolloutpool_worker.rollout.attempt import run_rollout
from rolloutpool_worker.settings import WorkerSettings

__all__ = ["OPTION", "run_isolated", "serve"]

OPTION = "--isolated"
BUSY_SECONDS = 1.0
LOOK_SECONDS = 1.0


async def run_isolated(runtime: Runtime, uid: str) -> str:
    """Starts the process for a rollout and waits for it; one at a time in each worker, others are tried again soon."""
    if runtime.isolated_child.locked() or runtime.drain.begun:
        with suppress(StoreError):
            await runtime.store.rollouts.postpone(uid, BUSY_SECONDS)
        return "isolated:busy"
    async with runtime.isolated_child:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rolloutpool_worker", OPTION, uid, str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
        )
        ended = asyncio.ensure_future(child.wait())
        # The child hears what this process hears.
        for told in (runtime.drain.wait, runtime.drain.wait_hurried):
            telling = asyncio.ensure_future(told())
            await asyncio.wait({ended, telling}, return_when=asyncio.FIRST_COMPLETED)
            telling.cancel()
            if not ended.done():
                child.send_signal(signal.SIGTERM)
        return f"isolated:{await ended}"


async def serve(settings: WorkerSettings, uid: str, parent: int) -> None:
    """The inside of that process; `parent` is the process that started it, because of this rollout."""
    runtime = Runtime(settings, isolated=True)
    loop = asyncio.get_running_loop()
    watch(loop)
    ending = asyncio.Event()
    stopping: list[asyncio.Task[None]] = []

    async def end() -> None:
        ending.set()
        await runtime.signalled()

    async def end_without_parent() -> None:
        while True:
            if os.getppid() != parent:
                ending.set()
                return await runtime.shut()
            await asyncio.sleep(LOOK_SECONDS)

    loop.add_signal_handler(signal.SIGTERM, lambda: stopping.append(asyncio.create_task(end())))
    await runtime.start()
    stopping.append(asyncio.create_task(end_without_parent()))
    suspect: str | None = uid
    try:
        while suspect is not None and not ending.is_set():
            await asyncio.create_task(run_rollout(runtime, suspect))
            suspect = await _next_after(runtime, suspect)
            if not ending.is_set():
                # The last one may have begun a drain of its own.
                runtime.drain = Drain()
    finally:
        await runtime.stop()
        # Whoever started us reads nothing but the code; libraries' threads are not worth waiting for.
        sys.stderr.flush()
    os._exit(0)


async def _next_after(runtime: Runtime, uid: str) -> str | None:
    with suppress(StoreError):
        first = await runtime.store.rollouts.first_suspect()
        # Who is still the first could not be claimed; others will see to it.
        return None if first == uid else first
    return None
