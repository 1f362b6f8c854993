"""What became of the pushes of a batch."""

from tests.support.batches import status_of
from tests.support.waiting import until

from rolloutpool_common.store import Store


async def settled(store: Store, uid: str) -> dict[str, int]:
    """The pushes of a rollout's batch by state, once none is pending."""

    async def look() -> dict[str, int] | None:
        status = await status_of(store, uid)
        return None if status.delivery.get("pending") else status.delivery

    return {state: n for state, n in (await until(look)).items() if n}
