"""A rollout alone in a process, because two workers died while they had it and it got nowhere.

If it is the rollout that kills them, the next death takes nobody along, and the reconciler knows whose it was. The
process is a worker of its own with one slot: it announces itself, beats, claims this one rollout, and ends. It drains
as soon as the rollout got further, which clears it, so that those who wait for their turn alone need not wait for its
end; and when the worker that started it is gone, because nobody would stop it.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from rolloutpool_common.store import StoreError
from rolloutpool_worker.event_loop import watch
from rolloutpool_worker.runtime import Runtime
from rolloutpool_worker.settings import WorkerSettings
from rolloutpool_worker.ticket import run_rollout

__all__ = ["OPTION", "run_alone", "serve_one"]

OPTION = "--solo"
BUSY_SECONDS = 1.0
LOOK_SECONDS = 1.0


async def run_alone(runtime: Runtime, uid: str) -> str:
    """Starts the process for a rollout and waits for it; one at a time in each worker, others are tried again soon."""
    if runtime.solo.locked() or runtime.drain.begun:
        with suppress(StoreError):
            await runtime.store.rollouts.postpone(uid, BUSY_SECONDS)
        return "solo:busy"
    async with runtime.solo:
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
        return f"solo:{await ended}"


async def serve_one(settings: WorkerSettings, uid: str, parent: int) -> None:
    """The inside of that process; `parent` is the process that started it."""
    runtime = Runtime(settings, solo=True)
    loop = asyncio.get_running_loop()
    watch(loop)
    stopping: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGTERM, lambda: stopping.append(asyncio.create_task(runtime.signalled())))
    await runtime.start()
    stopping.append(asyncio.create_task(_shut_without(parent, runtime)))
    try:
        await asyncio.create_task(run_rollout(runtime, uid))
    finally:
        await runtime.stop()
        # Whoever started us reads nothing but the code; libraries' threads are not worth waiting for.
        sys.stderr.flush()
    os._exit(0)


async def _shut_without(parent: int, runtime: Runtime) -> None:
    """Drains once that process is not the parent of this one any more."""
    while True:
        if os.getppid() != parent:
            return await runtime.shut()
        await asyncio.sleep(LOOK_SECONDS)
