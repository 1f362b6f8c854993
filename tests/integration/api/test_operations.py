"""Back-pressure, groups with a verdict, dead letters, and the preflight's manners without a worker."""

from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from tests.support.api_requests import batch
from tests.support.inside_api import Api, client_of, running_api
from tests.support.scripted_worker import ScriptedWorker, plain_result

from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.store import Store


async def test_beyond_the_queue_limit_is_429_and_is_told_before(redis_url: str, worker: ScriptedWorker) -> None:
    async with running_api(redis_url, max_open=5) as api, client_of(api) as client:
        assert (await client.get("/readyz")).json()["submits"] == "open"
        first = await client.post("/v1/batches", json=batch(5))
        refused = await client.post("/v1/batches", json=batch(1))
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert "of at most 5" in refused.json()["error"]["message"]
        full = (await client.get("/readyz")).json()
        assert full["submits"] == "closed"
        (why,) = [warning for warning in full["warnings"] if "ROLLOUTPOOL_MAX_OPEN" in warning]
        assert why.startswith("submits of all keys are refused")
        await client.delete(first.headers["location"])
        assert (await client.post("/v1/batches", json=batch(3))).status_code == 202


async def test_a_redis_that_is_too_small_for_the_slots_is_a_warning(
    client: httpx.AsyncClient, raw: Redis, worker: ScriptedWorker
) -> None:
    await worker.announce(slots=1000)
    said = []
    for megabytes in (50, 500):
        await raw.config_set("maxmemory", megabytes * 2**20)
        warnings = (await client.get("/readyz")).json()["warnings"]
        said.append([warning for warning in warnings if "slots, which can't all be used" in warning])
    (small,), large = said
    assert "50 MB (`maxmemory`): room for" in small
    assert large == []


async def test_redis_near_its_limit_is_503_before_it_is_full(client: httpx.AsyncClient, raw: Redis) -> None:
    used = (await raw.info("memory"))["used_memory"]
    # Room for some twenty rollouts with what is reserved for each, beside what is reserved for vocabularies.
    await raw.config_set("maxmemory", used + 20 * 64 * 1024 + 16 * 2**20)
    refused = await client.post("/v1/batches", json=batch(40))
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert (await client.post("/v1/batches", json=batch(5))).status_code == 202


async def test_groups_show_their_verdict(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    document = batch(0, group={"size": 3, "min_usable": 2, "late": "keep"})
    message = [{"role": "user", "content": "Calculate 1 + 1"}]
    document["rollouts"] = [{"group": name, "n": 3, "messages": message} for name in ("a", "b")]
    accepted = await client.post("/v1/batches", json=document)
    uids = accepted.json()["rollouts"]
    for uid in uids[:2]:
        await worker.end(uid)
    for uid in uids[3:5]:
        await client.delete(f"/v1/rollouts/{uid}")
    groups = (await client.get(accepted.headers["location"] + "/groups")).json()["groups"]
    assert [(g["group"], g["size"], g["completed"], g["cancelled"], g["verdict"]) for g in groups] == [
        ("a", 3, 2, 0, "usable"),
        ("b", 3, 0, 2, "dropped"),
    ]


async def test_a_group_that_cannot_be_is_a_fault(client: httpx.AsyncClient) -> None:
    for policy, fault in [
        ({"size": 4, "min_usable": 2}, "has 3 rollouts, group.size says 4"),
        ({"min_usable": 4}, "fewer than group.min_usable 4"),
        ({"size": 2, "min_usable": 3}, "can't be reached"),
    ]:
        document = batch(0, group=policy)
        document["rollouts"] = [{"group": "a", "n": 3, "messages": [{"role": "user", "content": "x"}]}]
        refused = await client.post("/v1/batches", json=document)
        assert refused.status_code == 422
        assert fault in refused.text


async def test_a_dead_rollout_can_be_run_again(client: httpx.AsyncClient, store: Store, worker: ScriptedWorker) -> None:
    accepted = (await client.post("/v1/batches", json=batch(1, labels={"run": "7"}))).json()
    (uid,) = accepted["rollouts"]
    await store.rollouts.settle(accepted["batch_id"], 0, RolloutEnd(RolloutStatus.FAILED, FinishReason.ERROR))
    await store.reconciliation.note_dead(uid)
    assert (await client.get("/v1/dead-letters")).json() == {"rollouts": [uid], "pushes": []}
    again = await client.post(f"/v1/dead-letters/{uid}/requeue")
    assert again.status_code == 202
    (new,) = again.json()["rollouts"]
    result = await worker.end(new)
    assert result.messages[0].content == "Calculate 0 + 3"
    status = (await client.get(f"/v1/batches/{again.json()['batch_id']}")).json()
    assert status["labels"] == {"run": "7", "requeued_from": uid}
    # What ended stays ended.
    assert (await client.get(f"/v1/rollouts/{uid}")).json()["status"] == "failed"
    assert (await client.post("/v1/dead-letters/b0-0/requeue")).status_code == 404


async def test_evidence_is_for_people(client: httpx.AsyncClient, store: Store, worker: ScriptedWorker) -> None:
    (uid,) = (await client.post("/v1/batches", json=batch(1))).json()["rollouts"]
    assert (await client.get(f"/v1/rollouts/{uid}/evidence")).status_code == 404
    claim = await worker.claim(uid)
    await store.rollouts.keep_evidence(claim, plain_result(claim))
    kept = await client.get(f"/v1/rollouts/{uid}/evidence")
    assert kept.json()["uid"] == uid


async def test_a_preflight_without_a_worker_says_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpool_api.routes.operations.PREFLIGHT_SECONDS", 0.3)
    async with client_of(api) as client:
        answer = await client.post("/v1/preflight", json={"server_urls": ["http://127.0.0.1:8081"]})
        assert answer.status_code == 503
        assert "no worker" in answer.json()["error"]["message"]
        wrong = await client.post("/v1/preflight", json={"server_urls": ["ftp://x"]})
        assert wrong.status_code == 422


async def test_data_of_another_version_is_named_by_readyz_and_never_touched(redis_url: str, raw: Any) -> None:
    """For an API that started while Redis was down; else it ends at its start (`store/test_schema.py`)."""
    await raw.hset("rp:epoch", "n", "3")
    async with running_api(redis_url) as api, client_of(api) as client:
        ready = await client.get("/readyz")
        workers = await client.get("/v1/workers")
        assert (await client.get("/livez")).status_code == 200
    assert await raw.keys() == [b"rp:epoch"]
    assert (ready.status_code, workers.status_code) == (503, 503)
    (reason,) = ready.json()["error"]["reasons"]
    assert "holds data of schema version 1" in reason
    assert workers.json()["error"]["message"] == reason
