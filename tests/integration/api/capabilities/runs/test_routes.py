"""Runs and leases over the API: who may steer what, and which requests keep a batch alive."""

import asyncio
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from redis.asyncio import Redis
from tests.support.api_callers import auth, shared_api
from tests.support.api_requests import batch
from tests.support.inside_api import Api, client_of, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.served_clock import let_a_week_pass
from tests.support.waiting import until

from rolloutpool_api import services
from rolloutpool_common.store import Store

LEASED = batch(2, run="job7", lease_seconds=3600)


async def test_a_version_goes_up_only(client: httpx.AsyncClient) -> None:
    path = "/v1/runs/job7/policy_version"
    assert (await client.get("/v1/runs/job7")).status_code == 404
    assert (await client.post("/v1/runs/job7/resume")).status_code == 404
    answer = await client.put(path, json={"policy_version": 12})
    assert (answer.status_code, answer.json()["policy_version"]) == (200, 12)
    assert answer.json()["announced_at"] is not None
    lower = await client.put(path, json={"policy_version": "11"})
    assert lower.status_code == 409
    assert "is at version 12" in lower.json()["error"]["message"]
    assert (await client.put(path, json={"policy_version": 11, "rollback": True})).json()["policy_version"] == 11
    assert (await client.get("/v1/runs/job7")).json()["policy_version"] == 11


async def test_nonsense_is_refused(client: httpx.AsyncClient) -> None:
    for content in [b"", b"[]", b"{", b"12", b'{"policy_version": 1, "x": 2}', b"\xff"]:
        headers = {"Content-Type": "application/json"}
        answer = await client.put("/v1/runs/job7/policy_version", content=content, headers=headers)
        assert answer.status_code in (400, 422), answer.text
        assert "message" in answer.json()["error"]


async def test_a_run_may_have_any_name(client: httpx.AsyncClient) -> None:
    for name in ["a/b", "pause", "policy_version", "x/policy_version", "?", "%", "…", "a b", "x" * 128]:
        path = f"/v1/runs/{quote(name, safe='')}"
        assert (await client.put(f"{path}/policy_version", json={"policy_version": 1})).json()["run"] == name
        assert (await client.post(f"{path}/pause")).json()["paused_at"] is not None
        assert (await client.get(path)).json()["run"] == name
        assert (await client.post(f"{path}/resume")).json()["paused_at"] is None


async def test_a_name_that_no_batch_can_have_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post(f"/v1/runs/{'x' * 129}/pause")
    assert answer.status_code == 422


async def test_a_pause_that_nobody_ends_is_ended_with_its_batches(redis_url: str, store: Store) -> None:
    async with running_api(redis_url, paused_seconds=10) as api, client_of(api) as client:
        accepted = (await client.post("/v1/batches", json=batch(2, run="job7"))).json()
        await client.post("/v1/runs/job7/pause")
        await let_a_week_pass(redis_url)
        state = await until(lambda: complete(client, accepted["batch_id"]))
        assert (state["cancel_cause"], state["counts"]["cancelled"]) == ("pause", 2)
        result = (await client.get(f"/v1/rollouts/{accepted['rollouts'][0]}")).json()["result"]
        assert result["waited_for"]["waits_for"] == "paused"
        assert (await client.get("/v1/runs/job7")).json()["paused_at"] is None
        text = (await client.get("/metrics")).text
        assert 'rolloutpool_batches_cancelled_total{cause="pause"} 1.0' in text
        assert "rolloutpool_run_pauses_total 1.0" in text


async def test_a_batch_that_nobody_reads_is_cancelled(
    api: Api, client: httpx.AsyncClient, worker: ScriptedWorker, redis_url: str
) -> None:
    accepted = (await client.post("/v1/batches", json=LEASED)).json()
    await worker.end(accepted["rollouts"][0])
    await let_a_week_pass(redis_url)
    await until(lambda: cancelling_over(redis_url, accepted["batch_id"]))
    state = (await client.get(f"/v1/batches/{accepted['batch_id']}")).json()
    # What had ended keeps its outcome, and its result can still be read.
    assert (state["cancel_cause"], state["cancelled"]) == ("lease", True)
    assert (state["counts"]["completed"], state["counts"]["cancelled"]) == (1, 1)
    assert 'rolloutpool_batches_cancelled_total{cause="lease"} 1.0' in (await client.get("/metrics")).text


async def test_any_read_with_its_key_renews_the_lease(redis_url: str) -> None:
    async with shared_api(redis_url) as client, Redis.from_url(redis_url) as raw:
        for path in [
            *("/v1/batches/{b}", "/v1/batches/{b}/results", "/v1/batches/{b}/rollouts", "/v1/batches/{b}/groups"),
            *("/v1/batches/{b}/events", "/v1/batches/{b}/group-statistics", "/v1/rollouts/{b}-1", "/v1/rollouts/named"),
            *("/v1/rollouts/{b}-1/history", "/v1/rollouts/{b}-1/annotations"),
        ]:
            rollouts = [
                {**item, "rollout_id": name} for item, name in zip(LEASED["rollouts"], ("named", "b"), strict=True)
            ]
            body = {**LEASED, "rollouts": rollouts}
            found = (await client.post("/v1/batches", json=body, headers=auth("ann"))).json()["batch_id"]
            for name, renews in (("boss", False), ("bob", False), ("ann-read", True)):
                await raw.zadd("rp:leases", {found: 5})
                async with client.stream("GET", path.format(b=found), headers=auth(name)) as answer:
                    # An event stream of a running batch does not end by itself.
                    await anext(answer.aiter_bytes())
                assert (await raw.zscore("rp:leases", found) != 5) is renews, (path, name)


@pytest.mark.parametrize("path", ["results?wait=5", "events"])
async def test_who_waits_keeps_the_lease(
    api: Api,
    client: httpx.AsyncClient,
    worker: ScriptedWorker,
    redis_url: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "LEASE_SECONDS", 0.02)
    accepted = (await client.post("/v1/batches", json=LEASED)).json()

    async def read() -> None:
        async with client.stream("GET", f"/v1/batches/{accepted['batch_id']}/{path}") as answer:
            async for _ in answer.aiter_bytes():
                pass

    async with Redis.from_url(redis_url) as raw:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.2)
        await raw.zadd("rp:leases", {accepted["batch_id"]: 5})

        async def renewed() -> bool:
            return await raw.zscore("rp:leases", accepted["batch_id"]) != 5

        await until(renewed)
        for uid in accepted["rollouts"]:
            await worker.end(uid)
        await reading
        # Nobody waits any more.
        assert await raw.exists("rp:leases") == 0


async def complete(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any] | None:
    state: dict[str, Any] = (await client.get(f"/v1/batches/{batch_id}")).json()
    return state if state["state"] == "complete" else None


async def cancelling_over(redis_url: str, batch_id: str) -> bool:
    """Without a read by the API, which would renew the lease."""
    async with Redis.from_url(redis_url) as raw:
        return bool(await raw.hexists(f"rp:batch:{batch_id}", "finished_ms"))
