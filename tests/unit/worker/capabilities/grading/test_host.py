"""How graders are asked: whatever one does is an answer or a fault, in time, and nothing else notices."""

import asyncio
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import graders
from tests.support.graders import ANSWERS, INVALID, rollout_of
from tests.support.processes import runs
from tests.support.waiting import until_true

from rolloutpool_common.capabilities.grading.errors import GradeInvalid, GradeLate, GraderFault
from rolloutpool_common.capabilities.grading.metrics import IN_GRADER
from rolloutpool_common.errors import RequestFault
from rolloutpool_common.outcomes import FailureKind
from rolloutpool_common.process.metrics import take_rows
from rolloutpool_worker.capabilities.grading.base import GraderBusy
from rolloutpool_worker.capabilities.grading.host import MOST_HELD, GraderHost
from rolloutpool_worker.graders import Grade, Grader
from rolloutpool_worker.tools import ToolWatch

ONE = rollout_of("abc", "de")


pytestmark = pytest.mark.usefixtures("log")


@pytest.fixture
async def host() -> AsyncIterator[GraderHost]:
    """One that waits for a second."""
    made = GraderHost(ToolWatch(blocked_seconds=0.5, memory_bytes=2**30), seconds=1.0, places=1)
    yield made
    await made.close()


async def ask(host: GraderHost, grader: Grader, options: Any = None, *, left_s: float = 30.0) -> list[Grade]:
    return await host.ask(grader, [ONE], options, left_s=left_s, warnings=set())


@pytest.mark.parametrize("grader", [graders.returns, graders.isolated_returns], ids=lambda grader: grader.name)
async def test_answers_are_the_same_from_the_loop_and_from_a_child(host: GraderHost, grader: Grader) -> None:
    for name, answer in ANSWERS.items():
        value = answer(ONE)
        (grade,) = await ask(host, grader, name)
        assert grade == (value if isinstance(value, Grade) else Grade(float(value)))  # type: ignore[arg-type]
    for name in ("nan", "10 MB", "a token too many"):
        with pytest.raises(GradeInvalid):
            await ask(host, grader, name)
    assert set(INVALID) > {"nan", "10 MB", "a token too many"}


@pytest.mark.parametrize("options", ["system", "keyboard", "cancelled"])
async def test_what_would_end_the_event_loop_is_a_fault(host: GraderHost, options: str) -> None:
    with pytest.raises(GraderFault, match="failed with") as caught:
        await ask(host, graders.exits, options)
    assert (caught.value.kind, caught.value.retryable) == (FailureKind.INFRA, True)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize("grader", [graders.fails, graders.fails_in_child], ids=["on the loop", "in a child"])
async def test_an_error_is_named_with_its_place_and_its_traceback_is_in_the_log(
    host: GraderHost, caplog: pytest.LogCaptureFixture, grader: Grader
) -> None:
    place = r"\(graders\.py:\d+ in _fail\)"
    with pytest.raises(GraderFault, match=rf"failed with RuntimeError: secret detail {place}$"):
        await ask(host, grader, 1)
    (line,) = [record for record in caplog.records if record.message == "plug-in failed"]
    fields = vars(line)["event_fields"]
    assert (fields["plugin"], fields["error"]) == (f"grader {grader.name}", "RuntimeError")
    assert 'raise RuntimeError("secret detail")' in fields["exception"]


@pytest.mark.parametrize("grader", [graders.hangs, graders.disobeys], ids=lambda grader: grader.name)
async def test_one_that_hangs_is_left_alone_when_its_time_is_over(host: GraderHost, grader: Grader) -> None:
    start = time.monotonic()
    with pytest.raises(GraderFault, match="within 1 s"):
        await ask(host, grader)
    with pytest.raises(GradeLate):
        await ask(host, grader, left_s=0.05)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("how", ["computes", "sleeps"])
async def test_one_that_blocks_is_ended_at_its_limit_and_stops_nobody(
    host: GraderHost, log: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    seconds = 3.0 if how == "sleeps" else 60.0
    blocked = [asyncio.create_task(ask(host, graders.blocks, {"how": how, "seconds": seconds})) for _ in range(2)]
    await until_true(lambda: log.read_text().count("blocks b-0"), 10.0)
    # Its loop is held, and neither this one nor that of another grader is.
    assert await ask(host, graders.returns, "a number") == [Grade(0.5)]
    for call in blocked:
        with pytest.raises(GraderFault, match="did not answer within 1 s"):
            await call
    # The next call has another loop, as soon as it is known that the first one does not answer.
    await until_true(lambda: "grader holds its event loop" in caplog.text, 10.0)
    assert await ask(host, graders.blocks, {"how": how, "seconds": 0.0}) == [Grade(0.5)]
    # Nothing of the first one is left: Python interrupts what computes, and a sleep returns.
    await until_true(lambda: threads() <= 1, 30.0)


async def test_one_that_always_blocks_takes_no_more_than_some_threads(
    host: GraderHost, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutpool_worker.capabilities.grading.own_loop.ANSWER_SECONDS", 0.05)
    host._seconds = 0.1
    await until_true(lambda: threads() == 0, 10.0)
    for _ in range(40):
        with pytest.raises((GraderBusy, GraderFault)) as end:
            await ask(host, graders.blocks, {"how": "sleeps", "seconds": 6.0})
        if end.type is GraderBusy:
            break
        assert "did not answer within" in str(end.value)
        await asyncio.sleep(0.1)
    assert end.type is GraderBusy
    assert threads() == MOST_HELD


def threads() -> int:
    return sum(thread.name == "grader blocks" for thread in threading.enumerate())


async def test_a_rollout_that_is_cancelled_does_not_wait_for_it(host: GraderHost) -> None:
    asked = asyncio.create_task(ask(host, graders.disobeys))
    await asyncio.sleep(0.05)
    asked.cancel()
    done, _ = await asyncio.wait({asked}, timeout=0.5)
    assert done
    assert asked.cancelled()


async def test_a_child_that_dies_or_spins_costs_its_own_call_and_no_other(host: GraderHost, log: Path) -> None:
    with pytest.raises(GraderFault, match="SIGSEGV"):
        await ask(host, graders.dies)
    late = asyncio.create_task(ask(host, graders.spins, 600))
    # While one spins, the loop goes on, and so do other graders: each has places of its own.
    slowest = 0.0
    for _ in range(20):
        before = time.perf_counter()
        await asyncio.sleep(0.01)
        slowest = max(slowest, time.perf_counter() - before)
    assert await ask(host, graders.isolated_returns, "a number") == [Grade(0.5)]
    with pytest.raises(GraderFault, match="no answer within"):
        await late
    assert slowest < 0.5
    # It was killed, and its place is free again.
    assert await ask(host, graders.spins, 0) == [Grade(0.5)]


async def test_who_waits_for_a_place_leaves_after_a_while_and_fails_when_its_deadline_passes(host: GraderHost) -> None:
    # Its child has to start first, and then it hangs for as long as others wait for its place.
    first = asyncio.create_task(ask(host, graders.spins, 600))
    await asyncio.sleep(0.01)
    with pytest.raises(GraderBusy):
        await ask(host, graders.spins, 0)
    with pytest.raises(GradeLate):
        await ask(host, graders.spins, 0, left_s=0.01)
    with pytest.raises(GraderFault):
        await first
    assert await ask(host, graders.spins, 0) == [Grade(0.5)]


async def test_closing_ends_all_children(host: GraderHost) -> None:
    await ask(host, graders.isolated_returns, "a number")
    (child,) = (one for one in multiprocessing.active_children() if one.name == "tool grader isolated_returns")
    pid = child.pid
    assert pid is not None
    await host.close()
    await until_true(lambda: not runs(pid), 10.0)


async def test_calls_are_counted_by_how_they_ended(host: GraderHost) -> None:
    take_rows()
    await ask(host, graders.returns, next(iter(ANSWERS)))
    for grader, options, left_s in (
        (graders.returns, "nan", 30.0),
        (graders.refuses, None, 30.0),
        (graders.fails, 1, 30.0),
        (graders.hangs, None, 0.05),
    ):
        with pytest.raises((GradeInvalid, GradeLate, GraderFault, RequestFault)):
            await ask(host, grader, options, left_s=left_s)
    asked = asyncio.create_task(ask(host, graders.hangs))
    await until_true(lambda: IN_GRADER.now)
    asked.cancel()
    await asyncio.wait([asked])
    assert IN_GRADER.now == 0
    fields = [field.split("|") for _, field, _ in take_rows() if field.startswith("grader_call_")]
    assert {(name, outcome) for _, name, outcome, part in fields if part != "sum"} == {
        (graders.returns.name, "ok"),
        (graders.returns.name, "invalid"),
        (graders.refuses.name, "options"),
        (graders.fails.name, "error"),
        (graders.hangs.name, "late"),
    }
