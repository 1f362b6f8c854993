"""`GET /v1/batches`: newest first, by pages, filtered, and nobody else's."""

import time
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from tests.support.api_callers import auth, shared_api
from tests.support.api_requests import batch, v1_request
from tests.support.batches import new_batch
from tests.support.scripted_worker import OWNER, ScriptedWorker, run_v1

from rolloutpool_common.protocol.batch_list import BatchList
from rolloutpool_common.store import Store
from rolloutpool_common.store.batch_list import AT_ONCE


async def submit(client: httpx.AsyncClient, name: str | None = None, count: int = 1, **changes: Any) -> str:
    headers = auth(name) if name else {}
    response = await client.post("/v1/batches", json=batch(count, **changes), headers=headers)
    assert response.status_code == 202, response.text
    return str(response.json()["batch_id"])


async def listed(client: httpx.AsyncClient, name: str | None = None, **params: Any) -> list[str]:
    response = await client.get("/v1/batches", params=params, headers=auth(name) if name else {})
    assert response.status_code == 200, response.text
    return [summary.batch_id for summary in BatchList.model_validate_json(response.content).batches]


async def test_a_summary_says_what_the_batch_is(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    batch_id = await submit(client, count=3, run="job7", weight=2, priority="low", labels={"step": "12"})
    claim = await worker.claim(f"{batch_id}-0")
    await worker.end(f"{batch_id}-1")
    (summary,) = BatchList.model_validate_json((await client.get("/v1/batches")).content).batches
    assert (summary.batch_id, summary.state, summary.owner, summary.run) == (batch_id, "running", OWNER, "job7")
    assert (summary.weight, summary.priority, summary.labels) == (2, "low", {"step": "12"})
    assert {status: n for status, n in summary.counts.items() if n} == {"queued": 1, "running": 1, "completed": 1}
    assert (summary.total, summary.turns, summary.finished_at, summary.v1) == (3, 1, None, False)
    assert summary.age_s == summary.seconds >= 0
    await client.delete(f"/v1/batches/{batch_id}")
    (summary,) = BatchList.model_validate_json((await client.get("/v1/batches")).content).batches
    assert (summary.state, summary.cancelled, summary.total) == ("complete", True, 3)
    assert summary.finished_at is not None
    assert claim.batch_id == batch_id


async def test_a_batch_without_a_run_has_none(client: httpx.AsyncClient) -> None:
    await submit(client)
    page = BatchList.model_validate_json((await client.get("/v1/batches")).content)
    assert (page.batches[0].run, page.next_cursor) == (None, None)


async def test_pages_have_each_batch_once_also_while_batches_come_and_go(client: httpx.AsyncClient) -> None:
    ids = [await submit(client) for _ in range(7)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = BatchList.model_validate_json((await client.get("/v1/batches", params={"limit": 2, **cursor})).content)
        assert len(page.batches) <= 2
        found += [summary.batch_id for summary in page.batches]
        if page.next_cursor is None:
            break
        cursor = {"cursor": page.next_cursor}
        await submit(client)
        # The very batch that the cursor names.
        for params in ({}, {"purge": "true"}):
            await client.delete(f"/v1/batches/{page.batches[-1].batch_id}", params=params)
    assert found == ids[::-1]


@pytest.mark.parametrize("gone", [True, False])
async def test_batches_of_one_millisecond_are_listed_once(
    client: httpx.AsyncClient, store: Store, raw: Redis, gone: bool
) -> None:
    new = [new_batch(owner=OWNER) for _ in range(9)]
    for made in new:
        await store.batches.submit(made)
        await raw.zadd(f"rp:batches:{OWNER}", {made.batch_id: 5})
        await raw.zadd("rp:batches", {made.batch_id: 5})
    found: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = BatchList.model_validate_json((await client.get("/v1/batches", params=params)).content)
        found += [summary.batch_id for summary in page.batches]
        if page.next_cursor is None:
            break
        params["cursor"] = page.next_cursor
        if gone:
            await raw.zrem("rp:batches", found[-1])
    assert sorted(found) == sorted(made.batch_id for made in new)


async def test_filters(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    first = await submit(client, run="a", labels={"step": "1", "kind": "x=y"})
    second = await submit(client, run="b", labels={"step": "1"})
    third = await submit(client, run="a", labels={"step": "2"})
    await worker.end(f"{second}-0")
    assert await listed(client, run="a") == [third, first]
    assert await listed(client, state="complete") == [second]
    assert await listed(client, state="running") == [third, first]
    assert await listed(client, label=["step=1"]) == [second, first]
    assert await listed(client, label=["step=1", "kind=x=y"]) == [first]
    assert await listed(client, run="a", state="complete") == []
    assert await listed(client, run="public/a") == []


async def test_rollouts_of_protocol_v1_are_listed_apart(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    mine = await submit(client)
    await run_v1(client, worker, v1_request())
    assert await listed(client) == [mine]
    (v1,) = BatchList.model_validate_json((await client.get("/v1/batches", params={"v1": "1"})).content).batches
    assert (v1.v1, v1.total, v1.state) == (True, 1, "complete")


async def test_everybody_sees_their_own(redis_url: str) -> None:
    async with shared_api(redis_url) as client:
        anns = await submit(client, "ann", run="same")
        bobs = await submit(client, "bob", run="same")
        assert await listed(client, "ann") == [anns]
        assert await listed(client, "ann-read", run="same") == [anns]
        assert await listed(client, "bob") == [bobs]
        assert await listed(client, "boss") == [bobs, anns]
        assert await listed(client, "boss", owner="ann", run="same") == [anns]
        assert await listed(client, "ann", owner="ann") == [anns]
        assert (await client.get("/v1/batches", params={"owner": "bob"}, headers=auth("ann"))).status_code == 403
        assert (await client.get("/v1/batches")).status_code == 401
        # Another's cursor is only a place in time.
        cursor = {"cursor": f"{int(time.time() * 1000) + 10_000}-{bobs}"}
        assert await listed(client, "ann", **cursor) == [anns]


async def test_nonsense_is_refused(client: httpx.AsyncClient) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"cursor": "0"}, 400),
        ({"cursor": "x" * 5000}, 400),
        ({"cursor": "5-b" + "G" * 32}, 400),
        ({"limit": "0"}, 422),
        ({"limit": "1001"}, 422),
        ({"state": "nonsense"}, 422),
        ({"label": "step"}, 422),
        ({"label": ["a=b"] * 9}, 422),
        ({"run": "x" * 129}, 422),
    ]
    for params, status in cases:
        assert (await client.get("/v1/batches", params=params)).status_code == status


async def test_a_purged_batch_is_listed_no_more(client: httpx.AsyncClient, raw: Redis) -> None:
    batch_id = await submit(client)
    for params in ({}, {"purge": "true"}):
        assert (await client.delete(f"/v1/batches/{batch_id}", params=params)).status_code == 200
    assert await listed(client) == []
    assert [key async for key in raw.scan_iter("rp:batches*")] == []


async def test_ten_thousand_batches_take_one_page_without_being_read(
    client: httpx.AsyncClient, store: Store, raw: Redis
) -> None:
    """One batch that a filter lets pass, behind 10,000 that it does not; and a page of the newest hundred."""
    oldest = await submit(client, run="wanted")
    new = new_batch(owner=OWNER)
    await store.batches.submit(new)
    hash_: Any = await raw.hgetall(f"rp:batch:{new.batch_id}")
    pipe = raw.pipeline(transaction=False)
    for number in range(9_998):
        made = f"b{number:032x}"
        pipe.hset(f"rp:batch:{made}", mapping=hash_)
        pipe.zadd(f"rp:batches:{OWNER}", {made: 10**13 + number})
        pipe.zadd("rp:batches", {made: 10**13 + number})
    await pipe.execute()
    await raw.config_resetstat()
    assert len(await listed(client)) == 100
    spent = await raw.info("commandstats")
    assert spent["cmdstat_hmget"]["calls"] < 200
    await raw.config_resetstat()
    assert await listed(client, run="wanted") == [oldest]
    looks = (await raw.info("commandstats"))["cmdstat_evalsha"]
    # The reconciler runs scripts as well, some a second.
    assert 10_000 / AT_ONCE <= looks["calls"] < 10_000 / AT_ONCE + 20
