"""Wake-ups: one blocking reader per process tells all waiters that a rollout of their batch has ended.

A signal carries no data: a waiter reads the done-stream, waits for a signal, and reads again. Signals can come without
need (after a reconnect, or when the reader was too slow, all waiters wake). None is lost between two waits of a watch.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.exceptions import RedisError

from rolloutpool_common.process.background import BackgroundTask
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import StoreError, store_errors

_log = logging.getLogger(__name__)

PAGE = 1000
"""Signals per read. The stream keeps ten times as many, so a reader that missed some finds a full page."""
REST_SECONDS = 0.005
"""Between two reads: where many rollouts end, one read brings several. One that ends alone is not held up."""


class Watch:
    """One waiter's view of one batch."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        """Waits for a signal since the last wait; False after `timeout` seconds without one."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        # After the wait and not before it: a signal that came while the waiter was reading is kept for its next wait.
        self._event.clear()
        return True

    def wake(self) -> None:
        """Makes the waiter look again."""
        self._event.set()


class Signals:
    """The process's one reader of `rp:finished`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._watches: dict[str, set[Watch]] = defaultdict(set)
        self._task = BackgroundTask("signals")

    async def start(self) -> None:
        """Begins to listen."""
        self._task.start(self._listen())

    async def stop(self) -> None:
        """Stops listening."""
        await self._task.stop()

    @asynccontextmanager
    async def watch(self, batch_id: str) -> AsyncIterator[Watch]:
        """Watches one batch; enter it before the first look, so that no signal is missed between the two."""
        watch = Watch()
        self._watches[batch_id].add(watch)
        try:
            yield watch
        finally:
            self._watches[batch_id].discard(watch)
            # Otherwise a process that lives long would keep an entry for each batch that it ever watched.
            if not self._watches[batch_id]:
                del self._watches[batch_id]

    def wake_all(self) -> None:
        """Makes every waiter look again."""
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    async def _listen(self) -> None:
        redis = self._connection.blocking()
        # Where to read on; `$` says that this is not known, at the start and after a lost connection.
        last = b"$"
        try:
            while True:
                try:
                    with store_errors():
                        if last == b"$":
                            # First the place, then the waiters look: a signal in between makes them look twice.
                            newest = await redis.xrevrange(keys.FINISHED, count=1)
                            last = newest[0][0] if newest else b"0"
                            self.wake_all()
                        # Half a minute, so that a connection that broke silently is noticed.
                        for _, entries in await redis.xread({keys.FINISHED: last}, count=PAGE, block=30_000) or []:
                            last = entries[-1][0]
                            # The reader is far behind, and the stream may have dropped signals that it has not read.
                            if len(entries) == PAGE:
                                self.wake_all()
                                continue
                            for batch_id in {fields[b"batch"].decode() for _, fields in entries}:
                                for watch in self._watches.get(batch_id, ()):
                                    watch.wake()
                            await asyncio.sleep(REST_SECONDS)
                # `ForeignSchema` is one: an API that was started while Redis was down finds data of another version
                # later. Its readers are told so, and this task goes on.
                except (StoreError, RedisError) as error:
                    _log.warning("signals: Redis does not answer (%s), trying again in 1 s", type(error).__name__)
                    last = b"$"
                    await asyncio.sleep(1)
        finally:
            await redis.aclose(close_connection_pool=True)
