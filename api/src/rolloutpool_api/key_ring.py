"""KeyRing: the API keys that hold now. Their file is looked at again while the API runs.

1. `LOOK_SECONDS` after the look before, the next question for a key looks at the file's inode, size and time. One that
   has changed is read. A request of a key that was added or removed so gets the new answer within two seconds.
2. A file that was written a moment ago may not be whole yet, so it is read when it is `SETTLED_SECONDS` old. To replace
   it by a rename is safer still.
3. A file that can't be read, or has an entry that can't, changes nothing: the keys before it go on to hold, the log
   says so, and so does `fault`, for `/readyz`. Otherwise a slip in one line would lock out everybody.
4. Each key ends by itself when its time has come.
5. Once there was a key, there is never an API without keys again: with an empty file nobody gets in.
"""

import os
import time
from collections.abc import Callable

import structlog

from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.security.api_keys import GUEST, ApiKey, KeyQuota, KeyScope, find_key

_log = structlog.stdlib.get_logger(__name__)

LOOK_SECONDS = 0.5
SETTLED_SECONDS = 1.0

_Mark = tuple[int, int, int] | None


class KeyRing:
    """The keys of one API process."""

    def __init__(self, settings: ApiSettings, *, clock: Callable[[], float] = time.time) -> None:
        """Begins with the keys that the settings have read; tests pass their own `clock` of Unix time."""
        self._settings = settings
        self._clock = clock
        # Of no file, so that the first look reads it again: it may have changed since the settings have read it.
        self._mark: _Mark = (0, 0, 0)
        self._keys = settings.api_keys
        self._required = bool(self._keys)
        self._looked = clock()
        self._fault: str | None = None

    @property
    def fault(self) -> str | None:
        """Why the file's newest content does not hold, if it does not."""
        self._refresh()
        return self._fault

    @property
    def required(self) -> bool:
        """Whether callers need a key, because this API has some or has had some."""
        self._refresh()
        return self._required

    @property
    def owners(self) -> list[str]:
        """The names whose work this pool takes, that of guests included."""
        self._refresh()
        return sorted({GUEST, *(key.name for key in self._keys)})

    @property
    def submitters(self) -> list[str]:
        """The names that may submit; guests among them where some are let in."""
        self._refresh()
        may = {KeyScope.SUBMIT, KeyScope.ADMIN}
        guests = [GUEST] if not self._required or self._settings.v1_networks else []
        return sorted({*guests, *(key.name for key in self._keys if key.scopes & may and not key.is_expired())})

    def find(self, key: str) -> ApiKey | None:
        """Finds the entry of a key; it may have expired."""
        self._refresh()
        return find_key(self._keys, key)

    def holds(self, key: ApiKey | None) -> bool:
        """Tells whether a key that was found before still lets its caller in, with all that it allowed then.

        Who came without a key (None) stays.
        """
        if key is None:
            return True
        self._refresh()
        now = next((known for known in self._keys if known.digest == key.digest), None)
        return now is not None and not now.is_expired() and now.name == key.name and now.scopes >= key.scopes

    def quota(self, owner: str) -> KeyQuota:
        """Returns the quota of a name: that of its last entry. Those without a key share the guests' one."""
        self._refresh()
        if owner == GUEST:
            return self._settings.guest_quota
        return next((key.quota for key in reversed(self._keys) if key.name == owner), KeyQuota())

    def _refresh(self) -> None:
        now = self._clock()
        if self._settings.api_keys_file is None or 0 <= now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        mark = self._look()
        if mark == self._mark or (mark is not None and 0 <= now - mark[0] / 1e9 < SETTLED_SECONDS):
            return
        self._mark = mark
        try:
            keys = self._settings.read_keys()
        except ValueError as error:
            # Without the error, which may name a key: `/readyz` shows this to everybody.
            self._fault = (
                "ROLLOUTPOOL_API_KEYS_FILE can't be used as it is now; the keys before go on to hold. See the log"
            )
            _log.error("api keys not reloaded", why=str(error))
            _log.warning("admin_action", action="reload_keys", key=None, outcome="refused")
            return
        before, had_fault = self._keys, self._fault is not None
        self._keys, self._fault = keys, None
        if keys == before and not had_fault:
            return
        self._required = self._required or bool(keys)
        added, removed = (
            sorted({key.name for key in some if key not in others}) for some, others in ((keys, before), (before, keys))
        )
        _log.warning("admin_action", action="reload_keys", key=None, outcome="ok", added=added, removed=removed)

    def _look(self) -> _Mark:
        if self._settings.api_keys_file is None:
            return None
        try:
            found = os.stat(self._settings.api_keys_file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
