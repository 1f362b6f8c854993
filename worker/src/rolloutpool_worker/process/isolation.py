"""A worker's isolated process: a child that tries suspects, so that a further crash harms no other rollout.

What a suspect is and who is tried with whom is in `store/trials.py`; the inside of the child is in `process/trial.py`.

1. The answer to a beat says that suspects wait (`Services.suspects_wait`). This worker asks whether it should start an
   isolated one; where enough are being started, the answer is no.
2. It starts `python -m rolloutpool_worker --isolated PARENT_PID PARENT_ID`, one at a time, and waits for its end.
3. It passes its SIGTERMs on: the first begins the child's drain, the second its hurry. The worker stops only after the
   child has ended.
4. It has chosen the child's id, and tells Redis how the child ended (`common/process/obituaries.py` does the same for
   workers). So the suspects' next trial begins at once, and a kill from outside is not held against them.
5. A child that has died is replaced when the next beat says that suspects wait.
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
from rolloutpool_common.store import StoreError
from rolloutpool_worker.rollout.services import Services

_log = logging.getLogger(__name__)

OPTION = "--isolated"
PAUSE_SECONDS = 0.5
"""After a child that did not end in order, until the next one may start: one that cannot start would take a core."""


class IsolatedRuns:
    """The isolated processes that one worker starts, one at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._running = asyncio.Lock()

    async def run(self) -> None:
        """Starts an isolated process whenever suspects wait; returns when the drain begins and no child is left."""
        services = self._services
        draining = asyncio.ensure_future(services.drain.wait())
        try:
            while not services.drain.begun:
                waiting = asyncio.ensure_future(services.suspects_wait.wait())
                await asyncio.wait({draining, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                # The next beat sets it again, as long as suspects wait.
                services.suspects_wait.clear()
                async with self._running:
                    await self._start_if_wanted()
        finally:
            draining.cancel()

    async def ended(self) -> None:
        """Returns when no child is left; the drain must have begun."""
        async with self._running:
            pass

    async def _start_if_wanted(self) -> None:
        services = self._services
        try:
            if services.drain.begun or not await services.store.trials.may_start(services.worker_id):
                return
            # If the drain has begun meanwhile, the child is told at once.
            ended_in_order = await self._run_child() == 0
        except StoreError as error:
            return _log.warning("suspects: %s", error.message)
        except OSError as error:
            _log.warning("no isolated process could be started: %s", error)
            ended_in_order = False
        if not ended_in_order:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _run_child(self) -> int:
        """Starts a child, waits for its end, and returns its exit code."""
        drain = self._services.drain
        worker_id = new_worker_id()
        kills = OomKills()
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rolloutpool_worker", OPTION, str(os.getpid()), self._services.worker_id),
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
                # It may have ended, and this loop has not heard of it yet.
                with suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)
        exit_code = await ended
        # Exit code 0 without a drain: no suspect was left, and it has no claims; or a tool ended it, and it has.
        end = ProcessEnd.of(exit_code, told_to_stop=drain.begun, oom=exit_code == -signal.SIGKILL and kills.take())
        if exit_code != 0:
            _log.warning("the isolated process %s ended: %s", worker_id, end)
        # If Redis fails here, the child's lost lifeline tells that it has ended.
        with suppress(StoreError):
            await self._services.store.workers.report_end(worker_id, end)
        return exit_code
