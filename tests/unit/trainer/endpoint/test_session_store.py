"""The store forgets by age and number, never a session that is sampling."""

import asyncio

from rolloutpool_trainer.endpoint.reply import TurnReply
from rolloutpool_trainer.endpoint.session_store import SessionKey, SessionStore
from rolloutpool_trainer.endpoint.sessions import RunningTurn, Session


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def filled(clock: Clock, *names: str, limit: int = 3, ttl: float = 10.0) -> SessionStore:
    store = SessionStore(limit, ttl, clock)
    for name in names:
        store.put((name, None), Session(name, None))
    return store


def kept(store: SessionStore, *names: str) -> list[str]:
    return [name for name in names if store.named(name) is not None]


def test_the_least_recently_used_goes_first() -> None:
    store = filled(Clock(), "a", "b", "c")
    assert store.find(("a", None)) is not None
    store.put(("d", None), Session("d", None))
    assert kept(store, "a", "b", "c", "d") == ["a", "c", "d"]
    assert len(store) == 3


def test_unused_sessions_age() -> None:
    clock = Clock()
    store = filled(clock, "a", "b")
    clock.now = 6.0
    assert store.find(("b", None)) is not None
    clock.now = 12.0
    assert store.find(("c", None)) is None
    assert kept(store, "a", "b") == ["b"]
    clock.now = 16.5
    assert store.find(("b", None)) is None
    assert len(store) == 0


async def test_a_session_that_samples_stays() -> None:
    clock = Clock()
    store = filled(clock, "a", "b", limit=1, ttl=10.0)
    assert kept(store, "a", "b") == ["b"]
    busy = store.named("b")
    assert busy is not None
    gate = asyncio.Event()

    async def sampling() -> TurnReply:
        await gate.wait()
        return TurnReply(b"", {})

    busy.running = RunningTurn(1, "digest", asyncio.create_task(sampling()))
    clock.now = 100.0
    store.put(("c", None), Session("c", None))
    assert kept(store, "b", "c") == ["b"]
    gate.set()
    await busy.running.task
    busy.running = None
    store.put(("d", None), Session("d", None))
    assert kept(store, "b", "c", "d") == ["d"]


def test_one_name_may_be_two_rollouts() -> None:
    store = SessionStore(10, 10.0, Clock())
    keys: list[SessionKey] = [("a", "u1"), ("a", "u2"), ("a", None)]
    sessions = [Session(*key) for key in keys]
    for key, session in zip(keys, sessions, strict=True):
        store.put(key, session)
    assert store.named("a") is sessions[2]
    again = Session(*keys[0])
    store.put(keys[0], again)
    assert store.named("a") is again
    assert store.find(keys[1]) is sessions[1]
    store.remove(keys[0])
    assert store.named("a") is sessions[2]
    assert store.drop("a") == 2
    assert store.drop("a") == 0
    assert store.named("a") is None
