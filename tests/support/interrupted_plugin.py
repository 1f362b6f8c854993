"""A plug-in whose worker gets SIGTERM as soon as it is announced, while its start is not over yet."""

import os
import signal
from typing import Any

from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.workers import Workers

announce = Workers.announce


async def announce_and_signal(self: Workers, worker_id: str, about: Announcement, **how: Any) -> None:
    """Announces the worker, and sends the signal before it returns."""
    await announce(self, worker_id, about, **how)
    os.kill(os.getpid(), signal.SIGTERM)


setattr(Workers, "announce", announce_and_signal)  # noqa: B010  a method, to mypy
