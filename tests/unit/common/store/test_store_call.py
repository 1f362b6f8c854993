"""Calls that travel as one keep their own answers and errors."""

import asyncio
from typing import Any

from redis.exceptions import ResponseError

from rolloutpool_common.store import StoreFull, StoreUnavailable
from rolloutpool_common.store.redis_compat import pack_command
from rolloutpool_common.store.store_call import JointCall, StoreCall, StoreScript, join

SCRIPT = StoreScript("many", "return {}", "sha")


def part(*args: Any) -> StoreCall:
    call = StoreCall(loop=asyncio.get_running_loop())
    call.name, call.begun, call.script, call.args, call.size = "many", 1.0, SCRIPT, args, 100
    return call


async def joined(n: int) -> tuple[JointCall, list[StoreCall]]:
    parts = [part("u", k, b"record") for k in range(n)]
    return join(parts), parts


async def test_parts_are_written_one_after_the_other() -> None:
    call, _ = await joined(2)
    behind: tuple[Any, ...] = ("u", 0, b"record", "u", 1, b"record")
    assert call.data == pack_command(("EVALSHA", "sha", 0, *behind))
    call.bring_text()
    assert call.data == pack_command(("EVAL", "return {}", 0, *behind))


async def test_each_part_has_its_answer_or_its_error() -> None:
    call, parts = await joined(4)
    parts[1].cancel()
    call.set_result([[b"ok", 1], [b"ok", 2], ResponseError("@user_script: 1: -OOM no memory"), None])
    assert [parts[0].result(), parts[3].result()] == [[b"ok", 1], None]
    assert isinstance(parts[2].exception(), StoreFull)


async def test_answers_that_are_too_few_are_nobodys() -> None:
    call, parts = await joined(2)
    call.set_result([[b"ok", 1]])
    assert [type(one.exception()) for one in parts] == [StoreUnavailable] * 2


async def test_what_stops_the_script_is_an_error_of_each_part() -> None:
    call, parts = await joined(2)
    call.refuse(ResponseError("BUSY Redis is busy"))
    errors = [one.exception() for one in parts]
    assert [type(error) for error in errors] == [StoreUnavailable] * 2
    # Each caller raises its own.
    assert errors[0] is not errors[1]


async def test_a_connection_that_breaks_concerns_the_parts() -> None:
    call, parts = await joined(3)
    assert list(call.parts) == parts
    assert list(parts[0].parts) == [parts[0]]
