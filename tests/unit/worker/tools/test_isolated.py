"""Isolated tools: whatever a child process does, its policy reads a message, and nothing else notices."""

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import tools
from tests.support.processes import runs
from tests.support.tools import ENDINGS, isolated_tool, open_files
from tests.support.waiting import until, until_true

from rolloutpool_worker.tools import ToolContext
from rolloutpool_worker.tools import isolated as isolated_module
from rolloutpool_worker.tools.isolated import IsolatedTools

CONTEXT = ToolContext("b-0", "r", 1, "c1", {"who": "me"})


@pytest.fixture
async def children() -> AsyncIterator[IsolatedTools]:
    """Two places."""
    made = IsolatedTools(2)
    yield made
    await made.close()
    assert len(made) == 0


async def ask(children: IsolatedTools, run: Any, seconds: float = 30.0, **given: Any) -> str:
    answer = await children.call(isolated_tool(run), CONTEXT, given, seconds=seconds, result_bytes=10_000)
    return answer.text


async def gone(pid: int) -> None:
    await until_true(lambda: not runs(pid), 10.0)


async def test_whatever_a_tool_does_is_a_message(children: IsolatedTools) -> None:
    for run, given, says in ENDINGS:
        assert await ask(children, run, **given) == says, (run, given)


async def test_a_call_is_told_its_context_and_children_are_used_again(children: IsolatedTools) -> None:
    texts = [await ask(children, tools.whoami) for _ in range(3)]
    assert len(set(texts)) == 1
    assert texts[0].startswith("b-0/1/c1 {'who': 'me'} ")
    assert str(os.getpid()) not in texts[0]
    assert len(children) == 1


async def test_calls_run_at_once_and_no_more_than_there_are_places(children: IsolatedTools, tmp_path: Path) -> None:
    pids = await asyncio.gather(
        *(ask(children, tools.meet, folder=str(tmp_path), who=str(number)) for number in range(4))
    )
    assert len(set(pids)) == len(children) == 2


async def test_a_tool_s_child_makes_room_for_another_tool(children: IsolatedTools) -> None:
    for run in (tools.whoami, tools.refuse, tools.surroundings):
        await ask(children, run)
    assert len(children) == 2


async def test_one_child_s_death_costs_one_call(children: IsolatedTools) -> None:
    spins = asyncio.create_task(ask(children, tools.spin, seconds=2.0))
    assert await ask(children, tools.segfault) == "Error: segfault was ended by SIGSEGV"
    assert await ask(children, tools.say, times=1) == "x"
    assert await spins == "Error: Tool execution timed out after 2 s"


async def test_the_loop_goes_on_beside_a_tool_that_spins(children: IsolatedTools) -> None:
    late = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + 0.01
            await asyncio.sleep(0.01)
            late.append(time.perf_counter() - due)

    await ask(children, tools.say, times=1)
    ticking = asyncio.create_task(tick())
    assert "timed out" in await ask(children, tools.spin, seconds=1.0)
    ticking.cancel()
    assert max(late) < 0.5


@pytest.mark.parametrize("how", ["cancelled", "too late", "closed"])
async def test_what_a_tool_has_started_ends_with_its_call(children: IsolatedTools, tmp_path: Path, how: str) -> None:
    file = tmp_path / "pids"

    async def noted() -> list[int]:
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    call = asyncio.create_task(ask(children, tools.note, seconds=3.0 if how == "too late" else 60.0, file=str(file)))
    child, helper = await until(noted, 30.0)
    assert runs(child)
    assert runs(helper)
    match how:
        case "cancelled":
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        case "too late":
            assert "timed out after 3 s" in await call
        case "closed":
            await children.close()
            assert await call == "Error: note was ended by SIGKILL"
    await gone(child)
    await gone(helper)
    assert len(children) == 0


async def test_a_call_that_is_cancelled_while_it_waits_costs_nothing(children: IsolatedTools) -> None:
    spins = [asyncio.create_task(ask(children, tools.spin, seconds=30.0)) for _ in range(2)]
    waits = asyncio.create_task(ask(children, tools.say, times=1))
    await asyncio.sleep(0.1)
    for call in (waits, *spins):
        call.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(waits, *spins, return_exceptions=True)
    )
    assert await ask(children, tools.say, times=2) == "xx"


async def test_a_child_has_nothing_of_its_worker(children: IsolatedTools, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    with (tmp_path / "open").open("w") as file, socket.socket() as connection:
        os.set_inheritable(file.fileno(), True)
        os.set_inheritable(connection.fileno(), True)
        mine = {os.readlink(f"/proc/self/fd/{number}") for number in (reader, file.fileno(), connection.fileno())}
        threads, *files = (await ask(children, tools.surroundings)).split()
        shared = open_files() & set(files)
    os.close(reader)
    os.close(writer)
    assert threads == "1"
    assert not mine & set(files)
    assert not [name for name in shared if name.startswith("socket:")]


async def test_a_child_that_keeps_much_memory_is_not_used_again(children: IsolatedTools) -> None:
    first = await ask(children, tools.keep, mb=150)
    assert len(children) == 0
    assert await ask(children, tools.keep, mb=10) != first
    assert len(children) == 1


async def test_a_tool_s_own_limit_is_the_shorter_one(children: IsolatedTools) -> None:
    tool = isolated_tool(tools.spin, seconds=0.5)
    answer = await children.call(tool, CONTEXT, {}, seconds=60.0, result_bytes=10)
    assert (answer.text, answer.error) == ("Error: Tool execution timed out after 0.5 s", "TimeoutError")


async def test_what_ended_a_call_is_named_and_an_error_has_its_place_in_the_users_code(children: IsolatedTools) -> None:
    async def answer(run: Any, **given: Any) -> Any:
        return await children.call(isolated_tool(run), CONTEXT, given, seconds=30.0, result_bytes=10_000)

    died, left, raised, long = [
        await answer(tools.segfault),
        await answer(tools.leave, code=3),
        await answer(tools.end_as, text="RuntimeError"),
        await answer(tools.say, times=20_000),
    ]
    assert [(one.error, one.raised) for one in (died, left, long)] == [("SIGSEGV", None), ("exit", None), (None, None)]
    assert re.fullmatch(r"RuntimeError: secret detail \(tools\.py:\d+ in end_as\)", str(raised.raised))
    assert "raise {" in raised.raised.traceback
    assert [one.cut for one in (died, raised, long)] == [False, False, True]


async def test_an_idle_child_gives_its_memory_back(children: IsolatedTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_module, "IDLE_SECONDS", 0.2)
    pid = int((await ask(children, tools.whoami)).split()[-1])
    await gone(pid)
    assert len(children) == 0
    assert str(pid) not in await ask(children, tools.whoami)


async def test_a_child_that_was_killed_while_idle_is_replaced(children: IsolatedTools) -> None:
    pid = int((await ask(children, tools.whoami)).split()[-1])
    os.kill(pid, 9)
    await gone(pid)
    assert re.search(r"\d+$", await ask(children, tools.whoami)).group() != str(pid)  # type: ignore[union-attr]


async def test_a_module_that_cannot_be_imported_is_logged(
    children: IsolatedTools, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools.say, "__module__", "no_such_module")
    assert await ask(children, tools.say, times=1) == "Error: Tool execution failed"
    assert "no_such_module cannot be imported" in caplog.text
