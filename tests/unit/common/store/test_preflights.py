"""A preflight's answer waits for the process that asked, and is read once."""

from rolloutpool_common.protocol.operations import Preflight
from rolloutpool_common.store import Store


async def test_an_answer_is_read_once(store: Store, other: Store) -> None:
    found = Preflight(worker="w", endpoints=[])
    assert await store.preflights.take("request") is None
    await other.preflights.answer("request", found)
    assert await store.preflights.take("another") is None
    assert await store.preflights.take("request") == found
    assert await store.preflights.take("request") is None
