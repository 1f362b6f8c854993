"""Pushes as a worker leases them."""

from tests.support.batches import OWNER

from rolloutpool_common.capabilities.webhooks.pushes import DuePush


def due_push(uid: str, url: str = "http://127.0.0.1:9/", *, attempt: int = 1) -> DuePush:
    """A push of `OWNER`'s."""
    return DuePush(uid, attempt, f"{OWNER} {url}", 0)
