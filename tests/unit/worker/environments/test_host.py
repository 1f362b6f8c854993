"""What a process gives its sessions: places, the fence between attempts, and a close that always comes."""

import asyncio
import logging

import pytest
from tests.support.games import GuessingGame

from rolloutpool_common.process.metrics import SESSIONS
from rolloutpool_worker.environments import EnvironmentFull, EnvironmentHost
from rolloutpool_worker.environments import host as host_module
from rolloutpool_worker.environments.base import ENVIRONMENTS, Environment
from rolloutpool_worker.environments.host import SessionTicket, close_environments

GAME = GuessingGame()


def new_host() -> EnvironmentHost:
    return EnvironmentHost(seconds=1.0, result_bytes=1000)


async def test_a_rollout_waits_for_a_place_and_gets_it_in_its_turn() -> None:
    host, narrow = new_host(), GuessingGame(places=2)
    first, second = [await host.enter("narrow", narrow, uid, 1) for uid in ("a", "b")]
    waiting = [asyncio.create_task(host.enter("narrow", narrow, uid, 1)) for uid in ("c", "d")]
    await asyncio.sleep(0)
    assert len(host) == 2
    # Another environment has places of its own.
    await host.enter("other", narrow, "e", 1)
    await host.leave(first)
    third = await waiting[0]
    assert not waiting[1].done()
    # A rollout that is cancelled while it waits takes no place along.
    waiting[1].cancel()
    await asyncio.wait(waiting)
    for ticket in (second, third):
        await host.leave(ticket)
    await asyncio.wait_for(host.enter("narrow", narrow, "f", 1), 1)
    await asyncio.wait_for(host.enter("narrow", narrow, "g", 1), 1)


async def test_leaving_twice_gives_one_place_back() -> None:
    host, narrow = new_host(), GuessingGame(places=1)
    before = SESSIONS.now
    ticket = await host.enter("narrow", narrow, "a", 1)
    assert SESSIONS.now == before + 1
    await host.leave(ticket)
    await host.leave(ticket)
    assert SESSIONS.now == before
    await host.enter("narrow", narrow, "b", 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host.enter("narrow", narrow, "c", 1), 0.05)


async def test_who_has_waited_long_for_a_place_leaves() -> None:
    """It has a slot of the worker, which others need."""
    host, narrow = EnvironmentHost(seconds=0.05, result_bytes=1000), GuessingGame(places=1)
    first = await host.enter("narrow", narrow, "a", 1)
    with pytest.raises(EnvironmentFull, match="all 1 places of this worker are taken"):
        await host.enter("narrow", narrow, "b", 1)
    assert len(host) == 1
    await host.leave(first)
    await asyncio.wait_for(host.enter("narrow", narrow, "b", 1), 1)


@pytest.mark.parametrize("attempts", [(1, 2), (2, 1)])
async def test_the_older_attempt_is_cut_off_whichever_opens_last(attempts: tuple[int, int]) -> None:
    host = new_host()
    tickets = [await host.enter("game", GAME, "a", attempt) for attempt in attempts]
    other = await host.enter("game", GAME, "b", 1)
    assert {ticket.attempt: ticket.fenced for ticket in tickets} == {1: True, 2: False}
    assert not other.fenced


class Closing:
    """Counts how often it was closed."""

    def __init__(self, ticket: SessionTicket, error: BaseException | None = None, seconds: float = 0.0) -> None:
        self.begun = self.ended = 0
        self._error, self._seconds = error, seconds
        ticket.close = self

    async def __call__(self) -> None:
        self.begun += 1
        await asyncio.sleep(self._seconds)
        self.ended += 1
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [OSError("secret"), SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_a_close_that_fails_harms_nothing(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    host = new_host()
    ticket = await host.enter("game", GAME, "a", 1)
    closing = Closing(ticket, error)
    with caplog.at_level(logging.WARNING):
        await host.leave(ticket)
    assert (closing.ended, len(host)) == (1, 0)
    assert f"could not be closed: {type(error).__name__}" in caplog.text
    assert "secret" not in caplog.text


async def test_a_close_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(host_module, "CLOSE_SECONDS", 0.05)
    host = new_host()
    ticket = await host.enter("game", GAME, "a", 1)
    closing = Closing(ticket, seconds=60)
    await asyncio.wait_for(host.leave(ticket), 5)
    assert (closing.begun, closing.ended, len(host)) == (1, 0, 0)
    assert "TimeoutError" in caplog.text


async def test_a_close_goes_on_where_its_rollout_is_cancelled() -> None:
    host = new_host()
    ticket = await host.enter("game", GAME, "a", 1)
    closing = Closing(ticket, seconds=0.05)
    leaving = asyncio.create_task(host.leave(ticket))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    # The end of the process waits for it, and closes what else is open.
    late = Closing(await host.enter("game", GAME, "b", 1))
    await host.close()
    assert (closing.begun, closing.ended, late.ended, len(host)) == (1, 1, 1, 0)


async def test_environments_are_closed_with_the_process_and_one_that_fails_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    class Held(Environment):
        def __init__(self, fails: bool) -> None:
            self._fails = fails

        async def aclose(self) -> None:
            if self._fails:
                raise OSError
            closed.append(self)

    held = Held(fails=False)
    monkeypatch.setattr(ENVIRONMENTS, "_things", {"fails": Held(fails=True), "held": held})
    await close_environments()
    assert closed == [held]
