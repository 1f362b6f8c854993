"""The watch: who held the loop, who took memory, and that nothing else changes for the tool."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from rolloutpool_worker.tools.watch import REPEAT_SECONDS, ToolWatch


class Time:
    """A clock that a tool moves on by working, and the process's peak of memory."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.bytes = 10_000

    def clock(self) -> float:
        return self.now

    def peak(self) -> int:
        return self.bytes


@pytest.fixture
def world() -> Time:
    return Time()


@pytest.fixture
def watch(world: Time) -> Iterator[ToolWatch]:
    yield ToolWatch(blocked_seconds=1.0, memory_bytes=500, clock=world.clock, peak=world.peak)
    assert ToolWatch.step is None


async def test_only_single_steps_count(world: Time, watch: ToolWatch, caplog: pytest.LogCaptureFixture) -> None:
    async def works(*seconds: float) -> str:
        for step in seconds:
            world.now += step
            await asyncio.sleep(0)
        return "done"

    warnings: set[str] = set()
    assert await watch.watched("polite", works(*[0.9] * 100), warnings) == "done"
    assert not warnings
    assert not caplog.messages
    assert await watch.watched("search", works(0.1, 2.5, 0.1), warnings) == "done"
    assert warnings == {"tool_blocked:search"}
    (line,) = caplog.messages
    assert line.startswith("tool search blocked the event loop for 2.5 s; ")


async def test_a_tool_is_named_once_a_minute(world: Time, watch: ToolWatch, caplog: pytest.LogCaptureFixture) -> None:
    async def block() -> None:
        world.now += 2.0

    for _ in range(10):
        warnings: set[str] = set()
        await watch.watched("search", block(), warnings)
        # The result says it each time.
        assert warnings == {"tool_blocked:search"}
    await watch.watched("other", block(), set())
    assert len(caplog.messages) == 2
    world.now += REPEAT_SECONDS
    await watch.watched("search", block(), set())
    assert len(caplog.messages) == 3


async def test_all_that_ran_while_memory_grew_are_named(
    world: Time, watch: ToolWatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, grown = asyncio.Event(), asyncio.Event()

    async def take() -> None:
        await begun.wait()
        world.bytes += 600
        world.now += 0.1
        grown.set()

    async def wait() -> None:
        begun.set()
        await grown.wait()

    async def nothing() -> None:
        world.now += 0.1

    await watch.watched("earlier", nothing(), set())
    both: tuple[set[str], set[str]] = (set(), set())
    await asyncio.gather(watch.watched("take", take(), both[0]), watch.watched("wait", wait(), both[1]))
    assert both == ({"tool_memory:take"}, {"tool_memory:wait"})
    assert all("while these tools ran: take, wait;" in line for line in caplog.messages)
    caplog.clear()
    later: set[str] = set()
    await watch.watched("later", nothing(), later)
    assert not later
    assert not caplog.messages


async def test_the_peak_is_read_only_where_it_can_have_risen_so_far(world: Time) -> None:
    reads: list[float] = []

    def peak() -> int:
        reads.append(world.now)
        return world.bytes

    async def take(seconds: float, much: int) -> None:
        world.now += seconds
        world.bytes += much

    # 16 ms take 256 MiB.
    limit = 2**28
    watch = ToolWatch(blocked_seconds=1.0, memory_bytes=limit, clock=world.clock, peak=peak)
    for _ in range(100):
        await watch.watched("quick", take(0.0001, 0), set())
    assert 1 <= len(reads) <= 4
    warnings: set[str] = set()
    await watch.watched("slow", take(0.02, limit + 1), warnings)
    assert warnings == {"tool_memory:slow"}
    # What the process took between two calls is not the second one's.
    world.now += 0.02
    world.bytes += limit + 1
    later: set[str] = set()
    await watch.watched("later", take(0.02, 0), later)
    assert not later


async def test_another_thread_sees_which_tool_holds_the_loop() -> None:
    watch = ToolWatch(blocked_seconds=60.0, memory_bytes=2**40)
    seen: list[str | None] = []

    def look() -> None:
        time.sleep(0.1)
        seen.append(ToolWatch.step.tool if ToolWatch.step else None)

    async def block() -> None:
        await asyncio.sleep(0)
        looking = asyncio.get_running_loop().run_in_executor(None, look)
        time.sleep(0.3)  # noqa: ASYNC251  the point of it
        await looking

    await watch.watched("search", block(), set())
    assert seen == ["search"]


async def test_a_tool_keeps_what_it_awaits_and_how_it_is_cancelled(watch: ToolWatch) -> None:
    events: list[str] = []

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            await asyncio.sleep(0.01)
            events.append("slept")
            raise
        return "never"

    task = asyncio.create_task(watch.watched("stubborn", stubborn(), set()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == ["cancelled", "slept"]

    async def fans_out() -> list[int]:
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0.001, number)) for number in range(3)]
        return [task.result() for task in tasks]

    assert await watch.watched("fans_out", fans_out(), set()) == [0, 1, 2]


async def test_the_real_clock_and_the_real_memory() -> None:
    watch = ToolWatch(blocked_seconds=0.05, memory_bytes=100 * 2**20)

    async def take() -> int:
        time.sleep(0.1)  # noqa: ASYNC251  the point of it
        return len(b"x" * (1000 * 2**20))

    warnings: set[str] = set()
    await watch.watched("take", take(), warnings)
    assert warnings == {"tool_blocked:take", "tool_memory:take"}


@pytest.mark.parametrize("inner_first", [False, True])
async def test_a_tool_whose_loop_is_gone_is_closed(watch: ToolWatch, inner_first: bool) -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("closed")

    tool = waits()
    call = watch.watched("search", tool, set())
    call.send(None)
    # The garbage collector closes a loop's coroutines in any order.
    for coroutine in (tool, call) if inner_first else (call, tool):
        coroutine.close()
    assert ended == ["closed"]
