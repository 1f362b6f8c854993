"""What a door does beside its calls."""

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutpool_api.capabilities.harness.calls import DoorCalls
from rolloutpool_common.process import background
from rolloutpool_common.store import Store


async def test_a_door_of_which_a_part_has_failed_ends_and_does_not_go_on_without_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: asyncio.Queue[int] = asyncio.Queue()
    monkeypatch.setattr(
        background, "os", SimpleNamespace(getpid=lambda: 0, kill=lambda _, n: told.put_nowait(n), _exit=0)
    )
    monkeypatch.setattr(background, "threading", SimpleNamespace(Timer=lambda *_: SimpleNamespace(start=lambda: None)))

    async def pump() -> None:
        raise ZeroDivisionError

    publisher: Any = SimpleNamespace(pump=pump, close=lambda: None)
    calls = DoorCalls(store, "here:1", publisher)
    calls.start()
    calls._woken.set()
    assert await asyncio.wait_for(told.get(), 10) == signal.SIGTERM
    await calls.stop()
