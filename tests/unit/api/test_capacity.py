"""Many submits ask Redis once how full the pool is, and count what they added meanwhile."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rolloutpool_api import capacity
from rolloutpool_api.capacity import RecentCapacity
from rolloutpool_common.store import Store, StoreUnavailable
from rolloutpool_common.store.records import Capacity


class Asked:
    """A store that counts the questions, and answers each after a moment."""

    def __init__(self) -> None:
        self.times = 0
        self.down = False
        self.batches = SimpleNamespace(capacity=self.capacity)

    async def capacity(self) -> Capacity:
        self.times += 1
        await asyncio.sleep(0.01)
        if self.down:
            raise StoreUnavailable
        return Capacity(open_rollouts=10, used_bytes=7, max_bytes=100)


def recent(store: Asked) -> RecentCapacity:
    return RecentCapacity(cast(Store, store))


async def test_a_thousand_at_once_ask_once_and_count_what_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the thousand take longer than the answer is fresh.
    monkeypatch.setattr(capacity, "FRESH_SECONDS", 60.0)
    store = Asked()
    known = recent(store)
    found = await asyncio.gather(*(known.look() for _ in range(1000)))
    assert found == [Capacity(10, 7, 100)] * 1000
    known.note_accepted(3)
    known.note_accepted(500)
    assert await known.look() == Capacity(10, 510, 100)
    assert store.times == 1


async def test_an_old_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "FRESH_SECONDS", 0.0)
    store = Asked()
    known = recent(store)
    await known.look()
    known.note_accepted(3)
    # Redis has counted the three by now.
    assert await known.look() == Capacity(10, 7, 100)
    assert store.times == 2


async def test_all_that_wait_fail_together_and_the_next_one_asks_again() -> None:
    store = Asked()
    store.down = True
    known = recent(store)
    begun = time.monotonic()
    found: list[Any] = await asyncio.gather(*(known.look() for _ in range(100)), return_exceptions=True)
    assert {type(error) for error in found} == {StoreUnavailable}
    # One after the other, each would have waited for an outage of its own.
    assert store.times == 1
    assert time.monotonic() - begun < 1
    store.down = False
    assert (await known.look()).open_rollouts == 10


async def test_one_that_goes_away_takes_the_answer_from_nobody() -> None:
    known = recent(Asked())
    first, second = asyncio.create_task(known.look()), asyncio.create_task(known.look())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).open_rollouts == 10
