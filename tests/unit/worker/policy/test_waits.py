"""Waits are noted once a second, warned of once a minute, and taken away with the first answer."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rolloutpool_common.errors import TrainerStatusError
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import StoreUnavailable
from rolloutpool_worker.policy import waits
from rolloutpool_worker.policy.waits import ProcessWaits

URL = "http://trainer:8081"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Notes:
    """What the store would get."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, Waiting]] = []
        """For the batch."""
        self.own: list[tuple[str, int]] = []
        """For the rollout."""
        self.cleared: list[tuple[str, str]] = []
        self.down = False

    async def note(self, uid: str, attempt: int, waiting: Waiting, *, batch: bool) -> None:
        if self.down:
            raise StoreUnavailable
        self.own.append((uid, attempt))
        if batch:
            self.noted.append((uid, waiting))

    async def clear(self, uid: str, attempt: int, endpoint: str) -> None:
        self.cleared.append((uid, endpoint))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def process(notes: Notes, clock: Clock) -> ProcessWaits:
    return ProcessWaits(notes, clock)  # type: ignore[arg-type]


ERROR = TrainerStatusError("turn 1 at http://trainer:8081: the trainer answered 503: loading", status=503)


async def test_many_tries_are_few_notes_and_one_warning(
    process: ProcessWaits, notes: Notes, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = [process.of("b", f"b-{i}", URL, 1) for i in range(64)]
    with caplog.at_level(logging.INFO):
        for second in range(61):
            for rollout in rollouts:
                await rollout.failed(ERROR, second + 1, 0.5)
            clock.now += 1.0
    assert len(notes.noted) == 61
    # Each try is a note of its rollout, and by it the store counts them.
    assert len(notes.own) == 61 * 64
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert "the trainer answered 503: loading; 1 tries failed" in warnings[0]
    assert f"{60 * 64} tries failed since the last warning" in warnings[1]


async def test_a_wait_of_another_kind_is_noted_at_once(process: ProcessWaits, notes: Notes) -> None:
    """Otherwise a call that is refused once a second hides that its port is taken out."""
    calling, deferred = process.of("b", "b-0", URL, 1), process.of("b", "b-1", URL, 1)
    await calling.failed(ERROR, 1, 0.5)
    for _ in range(3):
        await deferred.failed(ERROR, 1, 1.0, port=True)
    assert [noted.waits_for for _, noted in notes.noted] == [WaitsFor.TRAINER, WaitsFor.TRAINER_PORT]


async def test_a_rollout_that_ends_is_counted_no_more(process: ProcessWaits, notes: Notes) -> None:
    waiting, idle = process.of("b", "b-0", URL, 1), process.of("b", "b-1", URL, 1)
    await waiting.failed(ERROR, 1, 10.0, port=True)
    assert notes.noted[0][1].waits_for is WaitsFor.TRAINER_PORT
    assert notes.cleared == []
    await waiting.ended()
    await idle.ended()
    assert notes.cleared == [("b-0", URL)]


async def test_many_endpoints_are_not_remembered_for_ever(
    process: ProcessWaits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_MOST", 40)
    for i in range(100):
        await process.of(f"b{i}", f"b{i}-0", f"http://t:{i}", 1).failed(ERROR, 1, 0.5)
    assert len(process._noted) < 50
    assert len(process._warned) < 50


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is slow after 50 ms, and again each 50 ms."""
    monkeypatch.setattr(waits, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(waits, "AGAIN_SECONDS", 0.05)


@asynccontextmanager
async def asking(rollout: waits.RolloutWaits, where: str) -> AsyncIterator[None]:
    """As a channel asks."""
    call = rollout.asks(where)
    try:
        yield
    finally:
        if (reported := call.end()) is not None:
            await reported


@pytest.mark.usefixtures("hurry")
async def test_a_call_without_an_answer_is_noted_and_its_answer_takes_the_note_away(
    process: ProcessWaits, notes: Notes, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = [process.of("b", f"b-{i}", URL, 1) for i in range(2)]

    async def ask(rollout: waits.RolloutWaits) -> None:
        async with asking(rollout, f"turn 3 at {URL}"):
            # On a busy machine one of the two may be noted four times before the other.
            while rollout.now is None or len(notes.own) < 4:
                clock.now += 0.5
                await asyncio.sleep(0.01)
        await rollout.worked()

    with caplog.at_level(logging.INFO):
        await asyncio.gather(*map(ask, rollouts))
    _, waiting = notes.noted[-1]
    assert (waiting.waits_for, waiting.endpoint, waiting.status, waiting.tries) == (WaitsFor.TRAINER, URL, None, 0)
    assert waiting.message.startswith(f"turn 3 at {URL}: no answer for more than 0 s")
    assert {uid for uid, _ in notes.own} == {"b-0", "b-1"}
    assert sorted(notes.cleared) == [("b-0", URL), ("b-1", URL)]
    assert caplog.records == []
    assert [rollout.now for rollout in rollouts] == [None, None]


@pytest.mark.usefixtures("hurry")
async def test_a_call_that_ends_while_it_is_noted_leaves_no_later_note(process: ProcessWaits, notes: Notes) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    real = notes.note

    async def held(*arguments: object, **options: object) -> None:
        begun.set()
        await go_on.wait()
        await real(*arguments, **options)  # type: ignore[arg-type]

    notes.note = held  # type: ignore[method-assign]
    rollout = process.of("b", "b-0", URL, 1)

    async def ask() -> None:
        async with asking(rollout, "turn 1"):
            await begun.wait()
        assert len(notes.own) == 1
        await rollout.worked()

    task = asyncio.create_task(ask())
    await begun.wait()
    await asyncio.sleep(0.01)
    go_on.set()
    await task
    assert (rollout.now, notes.cleared) == (None, [("b-0", URL)])


@pytest.mark.usefixtures("hurry")
async def test_a_quick_call_is_not_noted_and_a_cancelled_one_says_what_it_waited_for(
    process: ProcessWaits, notes: Notes
) -> None:
    quick, slow = process.of("b", "b-0", URL, 1), process.of("b", "b-1", URL, 1)
    async with asking(quick, "turn 1"):
        pass
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), asking(slow, "turn 2"):
            await asyncio.sleep(60)
    assert {uid for uid, _ in notes.own} == {"b-1"}
    noted = len(notes.own)
    await asyncio.sleep(0.1)
    assert len(notes.own) == noted
    assert quick.now is None
    assert slow.now is not None
    assert "turn 2: no answer" in slow.now.message


async def test_what_is_no_trainer_is_noted_without_an_address(
    process: ProcessWaits, notes: Notes, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for uid in ("b-0", "b-1"):
        await process.of("b", uid, URL, 1).lacks(WaitsFor.ENVIRONMENT, "no room " * 200, 10.0)
    ((_, waiting),) = notes.noted
    assert (waiting.waits_for, waiting.endpoint, waiting.status) == (WaitsFor.ENVIRONMENT, None, None)
    assert (waiting.tries, waiting.rollouts, len(waiting.message)) == (1, 1, 500)
    assert waiting.next_try is not None
    assert waiting.last_try is not None
    assert (waiting.next_try - waiting.last_try).total_seconds() == pytest.approx(10)
    assert notes.own == [("b-0", 1), ("b-1", 1)]
    (warned,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned.startswith("rollouts wait for environment: no room")
