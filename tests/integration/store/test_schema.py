"""The version of the data in Redis: set where there is none, accepted where it is ours, refused where it is not."""

import asyncio
import re
import socket
from typing import Any

import orjson
import pytest
import redis.asyncio
from tests.support.batches import announce, beat, submit
from tests.support.forked_worker import forked

from rolloutpool_common.protocol.offers import spell
from rolloutpool_common.store import Claim, ClaimRefused, ForeignSchema, Store
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.schema import OLDEST_READ, SCHEMA_VERSION

VERSION_1 = {
    "rp:epoch": {"n": "3", "run": "0123456789abcdef"},
    "rp:totals": {"batches": "1", "accepted": "2"},
    "rp:batch:b1": {"scope": "", "total": "2"},
    "rp:rollout:b1-0": {"s": "running", "att": "1", "tok": "cafe", "w": "w1"},
}


async def fill(raw: redis.asyncio.Redis) -> None:
    for key, fields in VERSION_1.items():
        for field, value in fields.items():
            await raw.hset(key, field, value)


async def content(redis_url: str) -> dict[Any, Any]:
    """Every key's serialised value."""
    async with redis.asyncio.Redis.from_url(redis_url) as plain:
        return {key: await plain.dump(key) for key in await plain.keys()}


async def test_our_version_is_accepted_again(store: Store, other: Store, raw: redis.asyncio.Redis) -> None:
    await store.check_schema()
    await other.check_schema()
    assert await other.ping() > 0
    assert await raw.get("rp:schema") == str(SCHEMA_VERSION)


async def test_data_that_is_not_ours_is_not_in_the_way(store: Store, raw: redis.asyncio.Redis) -> None:
    await raw.set("celery", "somebody else's")
    await store.check_schema()
    assert await raw.get("rp:schema") == str(SCHEMA_VERSION)


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION + 1])
async def test_another_version_is_refused_by_each_connection_and_nothing_is_written(
    store: Store, redis_url: str, raw: redis.asyncio.Redis, version: int
) -> None:
    if version == 1:
        await fill(raw)
    else:
        await raw.set("rp:schema", version)
        await raw.hset("rp:epoch", mapping={"number": "3", "run_id": "0123456789abcdef"})
    before = await content(redis_url)
    says = re.escape(f"schema version {version}, and this program reads version {SCHEMA_VERSION}")
    for _ in range(2):
        with pytest.raises(ForeignSchema, match=says):
            await store.check_schema()
        with pytest.raises(ForeignSchema, match="finish or cancel its running batches"):
            await store.workers.known()
        with pytest.raises(ForeignSchema):
            await store.rollouts.claim("b1-0", "w1")
    assert await content(redis_url) == before


async def test_workers_of_the_version_before_get_nothing_new_and_with_the_last_one_it_becomes_ours(
    store: Store, other: Store, raw: redis.asyncio.Redis
) -> None:
    (begun,) = await submit(store)
    await announce(store, "new")
    await announce(store, "old")
    # A worker of that release does not say what it reads.
    about = orjson.loads(await raw.hget("rp:worker:old", "about") or "")
    del about["reads"]
    await raw.hset("rp:worker:old", mapping={"about": orjson.dumps(about), "offer": spell(())})
    await raw.set("rp:schema", OLDEST_READ)
    await other.check_schema()
    # At once, before anybody has looked at the workers; and after that.
    for look in (False, True):
        if look:
            await store.offers.look()
        mixed = await submit(store, [{"tools": ["search"]}, {}, {}])
        for uid in mixed:
            assert await store.rollouts.claim(uid, "old") is ClaimRefused.UNSUITED
        assert await store.rollouts.claim(mixed[0], "new") is ClaimRefused.UNSUITED
        for uid in mixed[1:]:
            assert isinstance(await store.rollouts.claim(uid, "new"), Claim)
    assert isinstance(await store.rollouts.claim(begun, "old"), Claim)
    assert await raw.get("rp:schema") == str(OLDEST_READ)
    await store.workers.leave("old")
    await store.offers.look()
    assert await raw.get("rp:schema") == str(SCHEMA_VERSION)
    (after,) = await submit(store)
    assert await raw.hget(f"rp:batch:{after.rpartition('-')[0]}", "needs") is None


async def test_a_pool_that_was_emptied_while_it_runs_goes_on(
    store: Store, other: Store, raw: redis.asyncio.Redis
) -> None:
    """Its open connections write, and none of them says the version again; the next connection does."""
    await beat(store, "w1", running=0, tokenizers={})
    await raw.flushall()
    await raw.script_flush()
    await store.workers.announce("w1", Announcement(host="h", pid=1, slots=1))
    assert [worker.worker_id for worker in await other.workers.known()] == ["w1"]
    assert await raw.get("rp:schema") == str(SCHEMA_VERSION)


async def test_a_redis_that_does_not_answer_is_no_other_version() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = Store.open(f"redis://127.0.0.1:{port}/0")
    await store.check_schema()
    await store.close()


@pytest.mark.parametrize(
    ("module", "arguments"), [("rolloutpool_api.__main__", ()), ("rolloutpool_worker.__main__", ("--worker-id", "w"))]
)
async def test_processes_end_with_instructions(
    redis_url: str, raw: redis.asyncio.Redis, module: str, arguments: tuple[str, ...]
) -> None:
    await fill(raw)
    before = await content(redis_url)
    env = {"ROLLOUTPOOL_REDIS_URL": redis_url, "ROLLOUT_SERVER_PORT": "0"}
    with forked(module, *arguments, **env) as (process, log):
        assert await asyncio.to_thread(process.wait) == 2
        said = log.read_text()
    assert "holds data of schema version 1" in said
    assert "Traceback" not in said
    assert await content(redis_url) == before
