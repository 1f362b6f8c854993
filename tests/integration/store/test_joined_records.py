"""Records that are written in one tick travel as one, and each is fenced, checked and answered by itself."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from tests.support.batches import claim, submit
from tests.support.journals import turn_record
from tests.support.redis_proxy import cuts, passes, redis_proxy

from rolloutpool_common.protocol.journal import TurnRecord
from rolloutpool_common.store import Claim, ClaimLost, Store, StoreFull


async def claims(store: Store, n: int) -> list[Claim]:
    return [await claim(store, uid) for uid in await submit(store, n)]


async def calls(raw: Redis) -> int:
    stats: dict[str, Any] = await raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


async def write(store: Store, claimed: list[Claim], *, records: int = 1) -> list[Any]:
    journal = [replace(turn_record(n), llm_ms=float(n)) for n in range(1, records + 1)]
    writes = (store.rollouts.journal(one, journal, turns=records) for one in claimed)
    return await asyncio.gather(*writes, return_exceptions=True)


async def numbers(store: Store, claimed: Claim) -> list[float]:
    return [cast(TurnRecord, record).llm_ms for record in await store.rollouts.read_journal(claimed.uid)]


async def test_the_records_of_a_tick_are_one_script(store: Store, raw: Redis) -> None:
    claimed = await claims(store, 20)
    await write(store, claimed)
    before = await calls(raw)
    assert await write(store, claimed, records=2) == [None] * 20
    assert await calls(raw) - before == 1
    for one in claimed:
        assert len(await store.rollouts.read_journal(one.uid)) == 2


async def test_a_record_that_fails_stops_none_behind_it(store: Store, raw: Redis) -> None:
    claimed = await claims(store, 5)
    stale, broken, behind = claimed[1], claimed[2], claimed[3]
    await write(store, [behind], records=3)
    # Redis has lost two of three records.
    await raw.ltrim(f"rp:rollout:{behind.uid}:journal", 0, 0)
    await raw.set(f"rp:rollout:{broken.uid}:journal", "no list")
    others = [claimed[0], replace(stale, token="0" * 16), broken, behind, claimed[4]]
    answers = await write(store, others, records=4)
    assert [type(answer) for answer in answers] == [type(None), ClaimLost, ResponseError, type(None), type(None)]
    assert "WRONGTYPE" in str(answers[2])
    assert await store.rollouts.read_journal(stale.uid) == []
    for one in (claimed[0], behind, claimed[4]):
        assert await numbers(store, one) == [1, 2, 3, 4]


async def test_a_redis_without_memory_takes_none_and_all_hear_it(store: Store, raw: Redis) -> None:
    claimed = await claims(store, 5)
    await write(store, claimed)
    await raw.config_set("maxmemory", "1")
    try:
        assert [type(answer) for answer in await write(store, claimed, records=2)] == [StoreFull] * 5
    finally:
        await raw.config_set("maxmemory", "0")
    assert {await raw.llen(f"rp:rollout:{one.uid}:journal") for one in claimed} == {1}
    assert await write(store, claimed, records=2) == [None] * 5


async def test_records_whose_answers_were_lost_are_kept_once(store: Store, redis_url: str) -> None:
    claimed = await claims(store, 30)
    async with redis_proxy(redis_url) as proxy:
        through = Store.open(proxy.url)
        # Redis has carried out what the first two connections brought, and their answers end in the middle.
        proxy.manner = lambda number: cuts(700) if number < 2 else passes
        for records in range(1, 8):
            assert await write(through, claimed, records=records) == [None] * 30
        await through.close()
        assert proxy.connections == 3
    for one in claimed:
        assert await numbers(store, one) == [*range(1, 8)]


@pytest.mark.parametrize("size", [10, 3_000, 40_000, 100_000])
async def test_many_records_of_any_size_are_all_written(store: Store, size: int) -> None:
    claimed = await claims(store, 40)
    record = turn_record(1)
    # zstd makes little of what has no pattern.
    text = "".join(chr(0x4E00 + (n * 7919 * (n + 1)) % 20_000) for n in range(size // 3))
    record = replace(record, message={**record.message, "content": text})
    assert await asyncio.gather(*(store.rollouts.journal(one, [record], turns=1) for one in claimed)) == [None] * 40
    for one in claimed:
        (kept,) = await store.rollouts.read_journal(one.uid)
        assert cast(TurnRecord, kept).message["content"] == text
