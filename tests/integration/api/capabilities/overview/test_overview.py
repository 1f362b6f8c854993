"""`GET /v1/overview`: what is wrong now, told apart as the first page of the viewer shows it."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from redis.asyncio import Redis
from tests.support.api_callers import auth, shared_api
from tests.support.api_requests import batch
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_api import readiness
from rolloutpool_api.capabilities.overview import troubles
from rolloutpool_common.capabilities.overview.wire import PoolOverview
from rolloutpool_common.errors import TrainerUnreachable
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import Store
from rolloutpool_common.store.schema import SCHEMA_VERSION

DOWN = "http://127.0.0.1:8081"


@pytest.fixture(autouse=True)
def not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "CACHED_SECONDS", 0.0)


async def submit(client: httpx.AsyncClient, count: int = 2, name: str | None = None) -> str:
    response = await client.post("/v1/batches", json=batch(count), headers=auth(name) if name else {})
    assert response.status_code == 202, response.text
    return str(response.json()["batch_id"])


async def look(client: httpx.AsyncClient, name: str | None = None) -> PoolOverview:
    response = await client.get("/v1/overview", headers=auth(name) if name else {})
    assert response.status_code == 200, response.text
    return PoolOverview.model_validate_json(response.content)


def refused(tries: int = 1) -> Waiting:
    now = datetime.now(UTC)
    said = {"message": f"connection refused, try {tries}", "last_try": now, "next_try": now + timedelta(seconds=30)}
    return Waiting(waits_for=WaitsFor.TRAINER_PORT, endpoint=DOWN, tries=tries, **said)


async def test_a_pool_without_a_worker_runs_nothing_and_says_so_first(client: httpx.AsyncClient) -> None:
    await submit(client)
    found = await look(client)
    assert found.verdict.startswith("The pool runs nothing: no worker is alive")
    assert found.troubles[0].kind == "not_ready"
    assert found.pool is not None
    assert (found.pool.workers, found.pool.open, found.pool.builds) == (0, 2, {})


async def test_a_pool_that_works_is_calm(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    assert (await look(client)).verdict == "Nothing is wrong; nothing runs."
    batch_id = await submit(client)
    await worker.claim(f"{batch_id}-0")
    found = await look(client)
    assert found.verdict == "Nothing is wrong; 1 batch runs."
    assert found.pool is not None
    assert found.pool.workers == 1
    assert [one.kind for one in found.troubles if one.kind != "warning"] == []


async def test_a_redis_that_takes_no_writes_is_said_first(
    client: httpx.AsyncClient, worker: ScriptedWorker, raw: Redis
) -> None:
    await submit(client)
    await raw.config_set("min-replicas-to-write", 1)
    try:
        found, ready = await look(client), (await client.get("/readyz")).json()
    finally:
        await raw.config_set("min-replicas-to-write", 0)
    assert found.verdict.startswith("No work is taken: Redis takes no writes: it has too few replicas")
    assert found.troubles[0].kind == "closed"
    assert ready["submits"] == "closed"
    assert any("min-replicas-to-write" in warning for warning in ready["warnings"])
    assert (await client.get("/readyz")).json()["submits"] == "open"


async def test_workers_that_are_not_heard_of_are_told(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store, raw: Redis
) -> None:
    other = ScriptedWorker(store, "w-gone")
    await other.announce(host="lost-host")
    await other.claim(f"{await submit(client)}-0")
    await raw.zincrby("rp:workers", -9000, "w-gone")
    found, ready = await look(client), (await client.get("/readyz")).json()
    (trouble,) = [one for one in found.troubles if one.kind == "silent"]
    assert trouble.title.startswith("1 worker has not been heard of for ")
    assert trouble.title.endswith(" s (lost-host)")
    assert found.verdict == f"{trouble.title}."
    assert [warning for warning in ready["warnings"] if warning.endswith(" s (lost-host)")]


async def test_workers_of_an_earlier_release_alone_are_a_warning(
    client: httpx.AsyncClient, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    assert any("of an earlier release" in warning for warning in (await client.get("/readyz")).json()["warnings"])


async def test_batches_that_wait_for_one_trainer_are_one_trouble(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    waiting = [await submit(client) for _ in range(2)]
    for n, batch_id in enumerate(waiting):
        claim = await worker.claim(f"{batch_id}-0")
        await store.waits.note(claim.uid, claim.attempt, refused(n), batch=True)
    found = await look(client)
    (trouble,) = [one for one in found.troubles if one.waits_for is WaitsFor.TRAINER_PORT]
    assert (trouble.endpoint, trouble.rollouts, set(trouble.batches)) == (DOWN, 2, set(waiting))
    assert "connection refused" in trouble.detail
    assert found.verdict == "A trainer is down: 2 rollouts wait."


async def test_a_batch_that_failed_whole_says_why_and_one_that_did_not_is_none(
    client: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    whole, part = await submit(client), await submit(client)
    end = {
        "status": RolloutStatus.FAILED,
        "finish_reason": FinishReason.ERROR,
        "failure": TrainerUnreachable("nobody listens").failure(),
    }
    for uid in (f"{whole}-0", f"{whole}-1", f"{part}-0"):
        await worker.end(uid, **end)
    await worker.end(f"{part}-1")
    found = await look(client)
    (trouble,) = [one for one in found.troubles if one.kind == "failed"]
    assert (trouble.batches, trouble.rollouts) == ([whole], 2)
    assert trouble.detail.endswith(": nobody listens")
    assert found.verdict == "1 batch failed whole."


async def test_a_trainer_that_renders_anew_is_named_by_what_drifted(
    client: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    batch_id = await submit(client)
    drift = {"assistant_text_changed": 1, "none": 3}
    await worker.end(f"{batch_id}-0", alignment=Alignment.FORKED, drift=drift)
    await worker.end(f"{batch_id}-1", alignment=Alignment.EXACT)
    found = await look(client)
    (trouble,) = [one for one in found.troubles if one.kind == "drift"]
    assert (trouble.rollouts, trouble.detail, trouble.batches) == (1, "assistant_text_changed", [batch_id])
    assert found.verdict == "1 rollout was split: the trainer's prompts were other ones."


async def test_tenants_see_their_own_and_operators_see_all(redis_url: str, store: Store) -> None:
    async with shared_api(redis_url) as client:
        made = ScriptedWorker(store)
        await made.announce()
        of_bob = await submit(client, name="bob")
        claim = await made.claim(f"{of_bob}-0")
        await store.waits.note(claim.uid, claim.attempt, refused(), batch=True)
        ann, bob, boss = [await look(client, name) for name in ("ann", "bob", "boss")]
        assert (ann.pool, bob.pool, ann.running, bob.running) == (None, None, 0, 1)
        assert of_bob not in ann.model_dump_json()
        assert DOWN not in ann.model_dump_json()
        assert boss.pool is not None
        assert boss.pool.open == 2
        assert bob.verdict == boss.verdict == "A trainer is down: 1 rollout waits."
        assert (await client.get("/v1/overview")).status_code == 401


async def test_many_readers_cost_one_look(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "CACHED_SECONDS", 60.0)
    first = await look(client)
    await submit(client)
    assert await look(client) == first
