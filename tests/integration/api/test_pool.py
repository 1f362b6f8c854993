"""Tools, workers, health: what the API says of the pool behind it."""

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs
from tests.support.api_requests import batch
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker, calculator
from tests.support.waiting import until_true

from rolloutpool_api.routes import tools
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_common.store import Store


async def test_tools_are_the_union_in_order(client: httpx.AsyncClient, worker: ScriptedWorker, store: Store) -> None:
    search = ToolDefinition(function=ToolFunction(name="search", description="Search"))
    await ScriptedWorker(store, "w2").announce(tools=[*calculator(), search])
    response = await client.get("/tools")
    assert response.status_code == 200
    assert list(response.json()) == ["tools"]
    names = [tool["function"]["name"] for tool in response.json()["tools"]]
    assert names == ["add", "subtract", "multiply", "divide", "search"]
    assert list(response.json()["tools"][0]) == ["type", "function"]
    assert list(response.json()["tools"][0]["function"]) == ["name", "description", "parameters"]


async def test_tools_wait_for_a_first_worker(client: httpx.AsyncClient, store: Store) -> None:
    asked = asyncio.create_task(client.get("/tools"))
    await client.get("/health")
    assert not asked.done()
    await ScriptedWorker(store).announce()
    assert (await asked).status_code == 200


async def test_tools_without_a_worker(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "FIRST_WORKER_SECONDS", 0.1)
    response = await client.get("/tools")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert "no worker is alive" in response.json()["detail"]


async def test_workers_and_queues(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    await client.post("/v1/batches", json=batch(3))
    answer = (await client.get("/v1/workers")).json()
    assert [(w["worker_id"], w["slots"], w["alive"], w["agents"]) for w in answer["workers"]] == [
        ("w1", 8, True, ["tool_calls"])
    ]
    assert answer["workers"][0]["tools"] == ["add", "subtract", "multiply", "divide"]
    assert sum(answer["queues"]["default"].values()) == 3


async def test_readiness(client: httpx.AsyncClient, store: Store) -> None:
    waiting = await client.get("/readyz")
    assert waiting.status_code == 503
    assert waiting.headers["retry-after"] == "2"
    assert "no worker is alive" in waiting.json()["error"]["reasons"][0]
    await ScriptedWorker(store).announce()
    ready = await client.get("/readyz")
    assert ready.status_code == 200
    assert (ready.json()["status"], ready.json()["workers"]) == ("ready", 1)
    assert (await client.get("/livez")).json() == {"status": "alive"}
    await store.doubts.add("w1", {"0123456789abcdef.1": 60.0})
    doubted = (await client.get("/readyz")).json()["warnings"]
    assert [warning.partition(" (")[0] for warning in doubted if "delta" in warning] == [
        "delta_doubted: deltas of template 0123456789abcdef go by the rule"
    ]
    assert "rolloutpool_delta_doubts_total 1.0" in (await client.get("/metrics")).text


async def test_settings_of_redis_that_risk_work_are_warnings(
    redis_url: str, store: Store, worker: ScriptedWorker
) -> None:
    raw = Redis.from_url(redis_url)
    await raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with capture_logs() as logged:
            async with running_api(redis_url) as api, client_of(api) as client:
                ready = await client.get("/readyz")
                await until_true(lambda: len(warned(logged)) == 3)
        assert ready.status_code == 200
        assert ready.json()["status"] == "ready"
        no_file, no_limit, evicts = ready.json()["warnings"]
        assert "appendonly yes" in no_file
        assert "maxmemory 0" in no_limit
        assert "allkeys-lru" in evicts
        assert warned(logged) == ready.json()["warnings"]

        await raw.config_set("maxmemory-policy", "noeviction")
        await raw.config_set("maxmemory", "1gb")
        assert await store.warnings() == [no_file]
    finally:
        await raw.config_set("maxmemory-policy", "noeviction")
        await raw.config_set("maxmemory", "0")
        await raw.aclose()


def warned(logged: Sequence[MutableMapping[str, Any]]) -> list[str]:
    return [line["warning"] for line in logged if line["event"] == "redis setting"]


async def test_without_redis_everything_answers() -> None:
    async with running_api("redis://127.0.0.1:1/0") as api, client_of(api) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/livez")).status_code == 200
        ready, listed, posted = await asyncio.gather(
            client.get("/readyz"), client.get("/v1/workers"), client.post("/v1/batches", json=batch())
        )
        assert "Redis does not answer" in ready.json()["error"]["reasons"][0]
        for response in (ready, listed, posted):
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["message"]
        v1 = await client.get("/tools")
        assert v1.status_code == 503
        assert "Redis does not answer" in v1.json()["detail"]


async def test_the_description_is_whole(client: httpx.AsyncClient) -> None:
    description = (await client.get("/openapi.json")).json()
    schemas = description["components"]["schemas"]
    operations = [op for path in description["paths"].values() for op in path.values()]
    assert all(op["summary"] and op["tags"] for op in operations)

    def refs(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [ref for inner in value.values() for ref in refs(inner)]
        return [ref for inner in value for ref in refs(inner)] if isinstance(value, list) else []

    assert {ref.rsplit("/", 1)[1] for ref in refs(description)} <= set(schemas)
    body = description["paths"]["/v1/batches"]["post"]["requestBody"]["content"]["application/json"]
    example = await client.post("/v1/batches", json=body["example"])
    assert example.status_code == 202
    assert (await client.get("/docs")).status_code == 200
