"""Answers reach the calls that they belong to, whatever their pieces; what belongs to nobody ends the line."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import BusyLoadingError, InvalidResponse

from rolloutpool_common.store import StoreFull, StoreUnavailable
from rolloutpool_common.store.line import Line
from rolloutpool_common.store.store_call import StoreCall, StoreScript
from rolloutpool_common.store.write_waits import IdleTime


class Wires(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Opened:
    """A line, and what its owner hears of it."""

    def __init__(self) -> None:
        self.rests = 0
        self.unknown: list[StoreCall] = []
        self.ends: list[Exception] = []
        self.wires = Wires()
        self.idle = IdleTime()
        self.line = Line(self._rest, self.unknown.append, lambda _, error: self.ends.append(error), self.idle)
        self.line.connection_made(self.wires)

    def _rest(self) -> None:
        self.rests += 1

    def call(self, data: bytes = b"x") -> StoreCall:
        call = StoreCall(loop=asyncio.get_running_loop())
        call.name, call.data, call.begun, call.script = "test", data, 0.0, StoreScript("test", "text", "sha")
        return call

    def send(self, n: int) -> list[StoreCall]:
        calls = [self.call(b"%d" % k) for k in range(n)]
        if calls:
            self.line.send(calls)
        return calls


ANSWERS = [
    (b":7\r\n", 7),
    (b"+OK\r\n", b"OK"),
    (b"$-1\r\n", None),
    (b"$0\r\n\r\n", b""),
    (b"$4\r\n\r\n:1\r\n", b"\r\n:1"),
    (b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", [b"a", [1]]),
    (b"*0\r\n", []),
]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=8), st.data())
def test_however_answers_are_cut_each_call_gets_its_own(chosen: list[tuple[bytes, Any]], data: st.DataObject) -> None:
    async def play() -> None:
        opened = Opened()
        calls = opened.send(len(chosen))
        text = b"".join(written for written, _ in chosen)
        places = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
        for begin, end in pairwise(places):
            assert not opened.rests
            opened.line.data_received(text[begin:end])
        assert [call.result() for call in calls] == [value for _, value in chosen]
        assert opened.rests == 1
        assert not opened.wires.aborted

    asyncio.run(play())


async def test_commands_leave_in_one_write() -> None:
    opened = Opened()
    opened.send(3)
    assert opened.wires.written == [b"012"]


async def test_an_answer_to_who_gave_up_is_dropped() -> None:
    opened = Opened()
    gone, other = opened.send(2)
    gone.cancel()
    opened.line.data_received(b":1\r\n:2\r\n")
    assert other.result() == 2


@pytest.mark.parametrize("unasked", [b":1\r\n", b"$10\r\nha", b"HTTP/1.1 200 OK\r\n", b"*1\r\n"])
@pytest.mark.parametrize("before", [0, 1])
async def test_what_nobody_has_asked_for_ends_the_line(unasked: bytes, before: int) -> None:
    opened = Opened()
    calls = opened.send(before)
    opened.line.data_received(b":7\r\n" * before + unasked)
    assert [call.result() for call in calls] == [7] * before
    assert opened.wires.aborted
    # What comes until the connection has ended is nobody's either.
    opened.line.calls.append(opened.call())
    opened.line.data_received(b":8\r\n")
    assert len(opened.line.calls) == 1
    opened.line.connection_lost(None)
    assert [type(error) for error in opened.ends] == [InvalidResponse]


async def test_a_server_that_loads_its_data_ends_the_line_with_all_its_calls() -> None:
    opened = Opened()
    calls = opened.send(2)
    opened.line.data_received(b"-LOADING Redis is loading the dataset in memory\r\n:2\r\n")
    opened.line.connection_lost(None)
    assert [type(error) for error in opened.ends] == [BusyLoadingError]
    assert not any(call.done() for call in calls)
    # The first of them too, so that it is sent again.
    assert list(opened.line.calls) == calls


async def test_what_is_pushed_answers_nothing() -> None:
    opened = Opened()
    opened.line.data_received(b">2\r\n$10\r\ninvalidate\r\n$-1\r\n")
    (call,) = opened.send(1)
    opened.line.data_received(b">1\r\n:5\r\n:7\r\n")
    assert call.result() == 7
    assert not opened.wires.aborted


async def test_an_error_is_one_callers_and_the_stores() -> None:
    opened = Opened()
    full, busy, nested = opened.send(3)
    opened.line.data_received(b"-OOM no memory\r\n-BUSY a script\r\n*2\r\n:1\r\n-ERR inside\r\n")
    assert isinstance(full.exception(), StoreFull)
    assert isinstance(busy.exception(), StoreUnavailable)
    assert nested.result()[0] == 1
    assert str(nested.result()[1]) == "inside"


async def test_a_script_that_is_unknown_is_the_owners() -> None:
    opened = Opened()
    unknown, known = opened.send(2)
    opened.line.data_received(b"-NOSCRIPT No matching script\r\n:1\r\n")
    assert opened.unknown == [unknown]
    assert not unknown.done()
    assert known.result() == 1


async def test_who_brought_the_text_along_and_is_refused_hears_it() -> None:
    opened = Opened()
    (call,) = opened.send(1)
    call.bring_text()
    opened.line.data_received(b"-NOSCRIPT No matching script\r\n")
    assert opened.unknown == []
    assert "No matching script" in str(call.exception())
