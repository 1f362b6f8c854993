"""Keeps the sessions of many rollouts, bounded by number and by age: the least recently used is forgotten first.

A session that is sampling is never forgotten, so that its turn has a place to go. This exception is why the store is
an OrderedDict of its own and no ready-made cache.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from rolloutpool_trainer.endpoint.request import TurnRequest
from rolloutpool_trainer.endpoint.sessions import Session

SessionKey = tuple[str, str | None]
"""(rollout_id, uid). The uid is needed because two batches may give their rollouts the same name."""


def session_key(request: TurnRequest) -> SessionKey:
    """Names the session that a request belongs to."""
    return request.body.rollout_id, request.uid


class SessionStore:
    """Sessions by key, the least recently used first."""

    def __init__(self, max_sessions: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Makes an empty store of so many sessions; one that is unused for `ttl` seconds is forgotten."""
        self._max, self._ttl, self._clock = max_sessions, ttl, clock
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()
        self._used: dict[SessionKey, float] = {}
        self._named: dict[str, dict[SessionKey, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: SessionKey) -> Session | None:
        """Returns the session, which counts as used now; None if there is none."""
        self._expire()
        session = self._sessions.get(key)
        if session is not None:
            self._touch(key)
        return session

    def put(self, key: SessionKey, session: Session) -> None:
        """Keeps a session in the place of one with its key; the least recently used one may be forgotten."""
        # Removed and not overwritten, so that it also moves to the end of its name: `named` means the last one opened.
        if key in self._sessions:
            self.remove(key)
        self._sessions[key] = session
        self._named.setdefault(key[0], {})[key] = None
        self._touch(key)
        self._expire()

    def named(self, rollout_id: str) -> Session | None:
        """Returns the session of this rollout id that was opened last; None if there is none."""
        keys = self._named.get(rollout_id)
        return self._sessions[next(reversed(keys))] if keys else None

    def drop(self, rollout_id: str) -> int:
        """Forgets all sessions of this rollout id; returns how many there were."""
        keys = tuple(self._named.get(rollout_id, ()))
        for key in keys:
            self.remove(key)
        return len(keys)

    def remove(self, key: SessionKey) -> None:
        """Forgets one session, which must be there."""
        del self._sessions[key], self._used[key], self._named[key[0]][key]
        if not self._named[key[0]]:
            del self._named[key[0]]

    def discard(self, session: Session) -> None:
        """Forgets this very session, if it is still there."""
        key = (session.rollout_id, session.uid)
        if self._sessions.get(key) is session:
            self.remove(key)

    def _touch(self, key: SessionKey) -> None:
        self._sessions.move_to_end(key)
        self._used[key] = self._clock()

    def _expire(self) -> None:
        oldest = self._clock() - self._ttl
        expired: list[SessionKey] = []
        for key, session in self._sessions.items():
            # The order is that of use, so after the first session that may stay all others may stay too.
            if len(self._sessions) - len(expired) <= self._max and self._used[key] >= oldest:
                break
            if session.running is None:
                expired.append(key)
        for key in expired:
            self.remove(key)
