"""Pushes as a worker leases them, and what became of those of a batch."""

from tests.support.batches import OWNER, status_of
from tests.support.waiting import until

from rolloutpool_common.capabilities.webhooks.pushes import DuePush
from rolloutpool_common.store import Store


def due_push(uid: str, url: str = "http://127.0.0.1:9/", *, attempt: int = 1) -> DuePush:
    """A push of `OWNER`'s."""
    return DuePush(uid, attempt, f"{OWNER} {url}", 0)


async def settled(store: Store, uid: str) -> dict[str, int]:
    """The pushes of a rollout's batch by state, once none is pending."""

    async def look() -> dict[str, int] | None:
        status = await status_of(store, uid)
        return None if status.delivery.get("pending") else status.delivery

    return {state: n for state, n in (await until(look)).items() if n}
