"""SessionInbox: how a process hears of new calls.

The script that takes a call publishes it in a channel of its worker, or only the session's uid where it is long. The
process is subscribed from its first session on. What gets lost here is found a little later: a session looks by itself
every two seconds, and so does the door that holds the call.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from rolloutpool_common.capabilities.harness.news import News
from rolloutpool_common.store import Store, StoreError
from rolloutpool_worker.capabilities.harness.session import SessionRun

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""After Redis did not answer."""


class SessionInbox:
    """The sessions that run in one process, by uid, and what wakes them."""

    def __init__(self, store: Store, worker_id: str) -> None:
        self.sessions: dict[str, SessionRun] = {}
        self._store = store
        self._worker_id = worker_id
        self._begun = asyncio.Event()
        """Set with the first session, because most workers have none."""
        self._stopped = asyncio.Event()

    def add(self, uid: str, session: SessionRun) -> None:
        """Has a session hear of its calls."""
        self.sessions[uid] = session
        self._begun.set()

    def take(self, uid: str) -> SessionRun | None:
        """Returns a session that runs no more."""
        return self.sessions.pop(uid, None)

    async def run(self) -> None:
        """Wakes sessions until the process ends."""
        await self._begun.wait()
        stopped = asyncio.ensure_future(self._stopped.wait())
        while not stopped.done():
            listens = asyncio.ensure_future(News.of_worker(self._store, self._worker_id).listen(self._wake))
            try:
                await asyncio.wait({listens, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if listens.done():
                    listens.result()
            except StoreError as error:
                _log.warning("calls of sessions are looked for every few seconds only: %s", error.message)
                # Redis may have been started again, without what was stored last.
                for session in self.sessions.values():
                    session.look()
                await asyncio.wait({stopped}, timeout=PAUSE_SECONDS)
            finally:
                listens.cancel()

    def _wake(self, heard: bytes) -> None:
        uid, _, call = heard.partition(b" ")
        if (session := self.sessions.get(uid.decode())) is not None:
            session.hear(call)

    def stop(self) -> None:
        """Ends the waking."""
        self._stopped.set()
        self._begun.set()

    def heard(self, notes: Mapping[str, Any]) -> None:
        """Hears nothing by beats."""
