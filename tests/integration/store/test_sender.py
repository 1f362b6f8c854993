"""Calls over a line that hangs, breaks or lies get their own answer, or an error, and hold up no others."""

import asyncio
import inspect
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvloop
from redis.asyncio import Redis
from tests.support.redis_proxy import Manner, RedisProxy, babbles, cuts, hangs, passes, redis_proxy, refuses

from rolloutpool_common.store import StoreUnavailable
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.sender import LARGE, RETRIES

GREETED = 2000
"""Bytes that are more than all answers to a greeting."""


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on asyncio's loop and on uvloop, with a proxy, a connection through it, and Redis itself."""

    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(loop: Callable[[], asyncio.AbstractEventLoop], redis_url: str, **others: Any) -> None:
        async def play() -> None:
            async with redis_proxy(redis_url) as proxy, Redis.from_url(redis_url) as raw:
                through = Connection(proxy.url)
                given = {"through": through, "proxy": proxy, "raw": raw, **others}
                await test(**{name: given[name] for name in names})
                await through.close()

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(play())

    names = list(inspect.signature(test).parameters)
    asked = ["loop", "redis_url", *(name for name in names if name not in ("through", "proxy", "raw"))]
    run.__name__ = test.__name__
    # pytest reads it; mypy takes `run` for what the decorator makes of it.
    signature = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in asked])
    setattr(run, "__signature__", signature)  # noqa: B010
    return cast(Callable[..., None], run)


def first(manner: Manner, n: int = 1) -> Callable[[int], Manner]:
    """The first n connections have this manner, all others pass."""
    return lambda number: manner if number < n else passes


async def echoes(connection: Connection, names: list[str]) -> list[Any]:
    return await asyncio.gather(*(connection.command("ECHO", name) for name in names), return_exceptions=True)


@pytest.mark.parametrize(
    "manner", [refuses, cuts(1), cuts(40), cuts(GREETED)], ids=["refuses", "cuts 1", "cuts 40", "cuts later"]
)
@on_both_loops
async def test_a_broken_connection_is_replaced(manner: Manner, through: Connection, proxy: RedisProxy) -> None:
    proxy.manner = first(manner, RETRIES)
    names = [f"name {n}" * 20 for n in range(100)]
    assert await echoes(through, names) == [name.encode() for name in names]


@pytest.mark.parametrize("manner", [refuses, cuts(1), cuts(40)], ids=["refuses", "cuts 1", "cuts 40"])
@on_both_loops
async def test_connections_that_all_break_are_an_error_within_half_a_second(
    manner: Manner, through: Connection, proxy: RedisProxy
) -> None:
    proxy.manner = lambda _: manner
    begun = time.perf_counter()
    answers = await echoes(through, ["a", "b"])
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    assert proxy.connections == 1 + RETRIES
    assert time.perf_counter() - begun < 3
    proxy.manner = lambda _: passes
    assert await through.command("ECHO", "again") == b"again"


@pytest.mark.parametrize("opening", [0, 40], ids=["before it greets", "while it greets"])
@on_both_loops
async def test_a_connection_that_hangs_while_it_is_opened_holds_up_nobody(
    opening: int, through: Connection, proxy: RedisProxy
) -> None:
    proxy.manner = first(hangs(opening), 2)
    async with asyncio.timeout(5):
        assert await echoes(through, ["a", "b"]) == [b"a", b"b"]


@on_both_loops
async def test_a_connection_that_hangs_keeps_only_what_it_carries(through: Connection, proxy: RedisProxy) -> None:
    proxy.manner = first(passes)
    assert await through.command("ECHO", "open") == b"open"
    carried = asyncio.ensure_future(through.command("BLPOP", "nothing", 2))
    await asyncio.sleep(0)
    async with asyncio.timeout(1.5):
        for n in range(5):
            assert await through.command("ECHO", f"{n}") == b"%d" % n
    assert not carried.done()
    # The answer comes, to whom it belongs.
    assert await carried is None
    # More where one broke beside load.
    assert proxy.connections >= 2


@on_both_loops
async def test_what_is_no_answer_ends_the_connection(through: Connection, proxy: RedisProxy) -> None:
    assert await through.command("ECHO", "open") == b"open"
    await through.close()
    proxy.manner = lambda _: babbles
    with pytest.raises(StoreUnavailable, match="protocol"):
        await through.command("ECHO", "x")
    proxy.manner = lambda _: passes
    assert await through.command("ECHO", "x") == b"x"


@on_both_loops
async def test_an_answer_that_nobody_asked_for_is_nobodys(through: Connection, proxy: RedisProxy) -> None:
    proxy.manner = first(_speaks_unasked)
    assert await through.command("ECHO", "mine") == b"mine"
    # It comes while nothing is asked, and would be the answer to what is asked next.
    await asyncio.sleep(0.2)
    assert await through.command("ECHO", "mine too") == b"mine too"
    # More where one broke beside load.
    assert proxy.connections >= 2


async def _speaks_unasked(answers: asyncio.StreamReader, store: asyncio.StreamWriter) -> None:
    while data := await answers.read(65_536):
        store.write(data)
        if b"mine" in data:
            await asyncio.sleep(0.05)
            store.write(b"$4\r\nevil\r\n")


@on_both_loops
async def test_on_connections_that_break_at_any_byte_each_gets_its_own_answer_or_an_error(
    through: Connection, proxy: RedisProxy
) -> None:
    lots = random.Random(1)
    proxy.manner = lambda _: lots.choice([cuts(lots.randrange(6000)), passes, cuts(lots.randrange(300, 700))])
    names = [f"name {n}" * lots.randrange(60) for n in range(2000)]
    wrong, failed = [], 0
    for begin in range(0, len(names), 100):
        some = names[begin : begin + 100]
        for name, answer in zip(some, await echoes(through, some), strict=True):
            if isinstance(answer, StoreUnavailable):
                failed += 1
            elif answer != name.encode():
                wrong.append((name, answer))
    assert wrong == []
    assert failed < len(names) / 2


@on_both_loops
async def test_callers_that_give_up_at_any_moment_change_nothing_for_others(
    through: Connection, proxy: RedisProxy
) -> None:
    lots = random.Random(2)

    async def ask(name: str) -> bytes:
        answer: bytes = await through.command("ECHO", name)
        return answer

    for _ in range(30):
        tasks = {name: asyncio.create_task(ask(name)) for name in (f"{n}" for n in range(50))}
        for task in tasks.values():
            if lots.random() < 0.5:
                task.cancel()
            if lots.random() < 0.2:
                await asyncio.sleep(0)
        for name, task in tasks.items():
            try:
                assert await task == name.encode()
            except asyncio.CancelledError:
                continue
    assert proxy.connections == 1


@on_both_loops
async def test_an_answer_of_ten_megabytes_comes_in_parts(through: Connection, raw: Redis) -> None:
    text = b"x" * 10_000_000
    await raw.set("large", text)
    small, large, nested = await asyncio.gather(
        through.command("ECHO", "small"), through.command("GET", "large"), through.command("MGET", "large", "none")
    )
    assert (small, large, nested) == (b"small", text, [text, None])


@on_both_loops
async def test_a_large_call_stands_before_no_small_one(through: Connection, proxy: RedisProxy) -> None:
    large = [asyncio.ensure_future(through.command("ECHO", "x" * (LARGE + n))) for n in range(3)]
    assert await through.command("ECHO", "small") == b"small"
    assert [len(answer) for answer in await asyncio.gather(*large)] == [LARGE, LARGE + 1, LARGE + 2]
    # More where one broke beside load.
    assert proxy.connections >= 2


@on_both_loops
async def test_what_is_refused_is_refused_to_its_caller_alone(through: Connection) -> None:
    with pytest.raises(TypeError):
        await asyncio.gather(through.command("ECHO", "x"), through.command("ECHO", None))
    assert await through.command("ECHO", "y") == b"y"


@on_both_loops
async def test_a_redis_that_is_started_again_answers_what_was_asked_meanwhile(
    through: Connection, proxy: RedisProxy, raw: Redis
) -> None:
    assert await through.command("ECHO", "open") == b"open"
    for n in range(20):
        asked = [asyncio.ensure_future(through.command("ECHO", f"{n} {m}")) for m in range(20)]
        await raw.client_kill_filter(_type="normal", skipme=True)
        assert await asyncio.gather(*asked) == [f"{n} {m}".encode() for m in range(20)]


@on_both_loops
async def test_a_close_ends_what_waits_and_a_later_call_connects_again(through: Connection) -> None:
    assert await through.command("ECHO", "open") == b"open"
    waiting = asyncio.ensure_future(through.command("BLPOP", "nothing", 30))
    await asyncio.sleep(0.05)
    await through.close()
    with pytest.raises(StoreUnavailable):
        await waiting
    assert await through.command("ECHO", "again") == b"again"
