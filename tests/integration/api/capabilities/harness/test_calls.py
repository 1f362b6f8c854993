"""How a door hears of replies, and what it does beside its calls."""

import asyncio
import signal
import time
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tests.support.batches import submit

from rolloutpool_api.capabilities.harness.calls import DoorCalls
from rolloutpool_common.capabilities.harness.calls import ModelCall
from rolloutpool_common.capabilities.harness.news import News
from rolloutpool_common.capabilities.harness.sessions import Arrival, Sessions, TakenCall
from rolloutpool_common.process import background
from rolloutpool_common.store import Store, StoreUnavailable


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


async def test_a_reply_that_is_told_before_its_call_has_a_number_is_heard(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy door read what is published first, and looked for the reply two seconds later."""
    (uid,) = await submit(store, shared={"harness": {"external": True}}, asks={"harness": True})
    calls, reply = DoorCalls(store, "here:1", SimpleNamespace()), {"message": {"content": "8"}}  # type: ignore[arg-type]
    taking = Sessions.take

    async def slow(*given: Any, **more: Any) -> TakenCall:
        taken = await taking(*given, **more)
        calls._wake(f"{uid} {taken.n} ".encode() + orjson.dumps(reply))
        calls._wake(f"{uid} {taken.n + 1} ".encode() + orjson.dumps(reply))
        return taken

    monkeypatch.setattr(Sessions, "take", slow)
    session = await calls.session(uid, end := time.monotonic() + 10)
    assert session is not None
    call = ModelCall([{"role": "user", "content": "hello"}], [])
    taken = await calls.take(session, call, Arrival(1, calls.holder()), end=end)
    assert (taken.outcome, taken.n, taken.reply) == ("taken", 1, reply)
    assert not calls._early


async def test_a_reply_that_redis_has_lost_is_not_that_of_the_call_in_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was gone when it was told. Then Redis was started again, without that call and its reply."""
    (uid,) = await submit(store, shared={"harness": {"external": True}}, asks={"harness": True})
    calls = DoorCalls(store, "here:1", SimpleNamespace())  # type: ignore[arg-type]
    taking, away = Sessions.take, [0.01]

    async def cut(*_: Any) -> None:
        raise StoreUnavailable("away")

    async def slow(*given: Any, **more: Any) -> TakenCall:
        if away:
            calls._wake(f'{uid} 1 {{"message": {{"content": "lost"}}}}'.encode())
            calls._listening.start(calls._listen())
            await asyncio.sleep(away.pop())
            raise StoreUnavailable("away")
        return await taking(*given, **more)

    monkeypatch.setattr(News, "listen", cut)
    monkeypatch.setattr(Sessions, "take", slow)
    session = await calls.session(uid, end := time.monotonic() + 10)
    assert session is not None
    call = ModelCall([{"role": "user", "content": "hello"}], [])
    taken = await calls.take(session, call, Arrival(1, calls.holder()), end=end)
    assert (taken.n, taken.reply) == (1, None)
    await calls._listening.stop()
