"""SessionInbox: how a process hears of new calls.

The script that takes a call puts the session's uid into a list of its worker. The process reads that list by a
connection of its own, and only while it has sessions. What gets lost here is found a little later: a session looks by
itself every two seconds, and so does the door that holds the call.
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
        self._has_some = asyncio.Event()
        self._stopped = asyncio.Event()

    def add(self, uid: str, session: SessionRun) -> None:
        """Has a session hear of its calls."""
        self.sessions[uid] = session
        self._has_some.set()

    def take(self, uid: str) -> SessionRun | None:
        """Returns a session that runs no more."""
        session = self.sessions.pop(uid, None)
        if not self.sessions:
            self._has_some.clear()
        return session

    async def run(self) -> None:
        """Wakes sessions until the process ends."""
        while not self._stopped.is_set():
            await self._has_some.wait()
            if self._stopped.is_set():
                return
            news = News.of_worker(self._store, self._worker_id)
            try:
                while self._has_some.is_set() and not self._stopped.is_set():
                    uid = await news.next()
                    if uid is not None and (session := self.sessions.get(uid.decode())) is not None:
                        session.news.set()
            except StoreError as error:
                _log.warning("calls of sessions are looked for every few seconds only: %s", error.message)
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                await news.close()

    def stop(self) -> None:
        """Ends with the present wait."""
        self._stopped.set()
        self._has_some.set()

    def heard(self, notes: Mapping[str, Any]) -> None:
        """Hears nothing by beats."""
