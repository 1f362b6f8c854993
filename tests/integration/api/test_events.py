"""Server-sent events of a batch: nothing missed, nothing twice, progress in measure."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
from redis.asyncio import Redis
from tests.support.api_requests import batch
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.protocol.rows import ROW_FIELDS, SummaryPage
from rolloutpool_common.store import keys


class Event(NamedTuple):
    name: str
    id: str | None
    data: Any


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "event" in fields:
            yield Event(fields["event"], fields.get("id"), json.loads(fields["data"]))
            fields = {}


async def test_results_progress_complete(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    accepted = (await client.post("/v1/batches", json=batch(3))).json()
    url = f"/v1/batches/{accepted['batch_id']}/events"
    seen: list[Event] = []
    async with client.stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for event in events(response):
            seen.append(event)
            if event.name == "progress" and len(seen) == 1:
                assert event.data["counts"]["queued"] == 3
                await worker.end(accepted["rollouts"][2])
            elif event.name == "result" and event.data["index"] == 2:
                await worker.end(accepted["rollouts"][0])
                await worker.end(accepted["rollouts"][1])
    results = [event for event in seen if event.name == "result"]
    assert [event.data["uid"] for event in results] == [accepted["rollouts"][i] for i in (2, 0, 1)]
    assert all(event.id == event.data["cursor"] for event in results)
    assert set(results[0].data) == {"uid", "index", "status", "cursor"}
    assert [event.name for event in seen[-2:]] == ["progress", "complete"]
    assert seen[-1].data["state"] == "complete"
    assert seen[-1].data["counts"]["completed"] == 3

    async with client.stream("GET", url, headers={"Last-Event-ID": results[0].id or ""}) as response:
        resumed = [event async for event in events(response)]
    assert [event for event in resumed if event.name == "result"] == results[1:]
    assert resumed[-1].name == "complete"


async def test_summaries_are_rows_and_no_result_is_read(
    client: httpx.AsyncClient, worker: ScriptedWorker, raw: Redis
) -> None:
    accepted = (await client.post("/v1/batches", json=batch(3))).json()
    url = f"/v1/batches/{accepted['batch_id']}"
    uids = accepted["rollouts"]
    for uid in (uids[1], uids[0]):
        await worker.end(uid, num_tool_calls=4)
    await client.delete(url)
    rows = (await client.get(f"{url}/rollouts")).json()["columns"]
    by_uid = {uid: {name: column[i] for name, column in rows.items()} for i, uid in enumerate(rows["uid"])}
    await raw.delete(*[key async for key in raw.scan_iter("*:result")])
    # A row that an older version wrote is shorter.
    name = keys.batch(accepted["batch_id"], "rows")
    old = json.loads(await raw.hget(name, "2") or "")
    await raw.hset(name, "2", json.dumps(old[:5]))
    by_uid[uids[2]] |= dict.fromkeys(list(ROW_FIELDS)[8:])
    async with client.stream("GET", f"{url}/events", params={"view": "summary"}) as response:
        seen = [event async for event in events(response)]
    results = [event for event in seen if event.name == "result"]
    assert [event.data["uid"] for event in results] == [uids[1], uids[0], uids[2]]
    assert [event.data["summary"] for event in results] == [by_uid[event.data["uid"]] for event in results]
    assert results[0].data["summary"]["tool_calls"] == 4
    assert (results[2].data["status"], seen[-1].name) == ("cancelled", "complete")

    page = SummaryPage.model_validate_json(
        (await client.get(f"{url}/results", params={"view": "summary", "limit": 2})).content
    )
    assert [(item.cursor, item.summary) for item in page.items] == [
        (event.id, event.data["summary"]) for event in results[:2]
    ]
    assert not page.complete
    params = {"view": "summary", "cursor": page.next_cursor, "format": "ndjson"}
    rest = await client.get(f"{url}/results", params=params)
    assert [json.loads(line)["summary"] for line in rest.text.splitlines()] == [results[2].data["summary"]]
    assert rest.headers["x-batch-complete"] == "true"
    for path in ("events", "results"):
        assert (await client.get(f"{url}/{path}", params={"view": "none"})).status_code == 422


async def test_summaries_of_what_has_no_row(client: httpx.AsyncClient, worker: ScriptedWorker, raw: Redis) -> None:
    accepted = (await client.post("/v1/batches", json=batch(250))).json()
    for uid in accepted["rollouts"]:
        await worker.end(uid)
    await raw.delete(keys.batch(accepted["batch_id"], "rows"))
    url = f"/v1/batches/{accepted['batch_id']}/results"
    page = (await client.get(url, params={"view": "summary", "limit": 1000})).json()
    assert page["complete"]
    assert [item["summary"]["index"] for item in page["items"]] == list(range(250))
    assert all(item["summary"]["finish_reason"] == "stop" for item in page["items"])


async def test_progress_comes_at_most_twice_a_second(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    accepted = (await client.post("/v1/batches", json=batch(40))).json()
    names = []
    async with client.stream("GET", f"/v1/batches/{accepted['batch_id']}/events") as response:
        async for event in events(response):
            names.append(event.name)
            if len(names) == 1:
                for uid in accepted["rollouts"]:
                    await worker.end(uid)
    seconds = response.elapsed.total_seconds()
    assert names.count("result") == 40
    assert names.count("progress") <= 2 + seconds / 0.5


async def test_pings_while_nothing_happens(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.05)
    accepted = (await client.post("/v1/batches", json=batch())).json()
    async with client.stream("GET", f"/v1/batches/{accepted['batch_id']}/events") as response:
        async for line in response.aiter_lines():
            if line == ": ping":
                break
        else:
            pytest.fail("the stream ended without a ping")
