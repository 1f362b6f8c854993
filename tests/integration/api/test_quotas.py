"""Quotas and shares over HTTP, with a real Redis that has a memory limit: nobody pays for another."""

from typing import Any

import httpx
from redis.asyncio import Redis
from tests.support.api_requests import batch, v1_request
from tests.support.batches import new_batch
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import until

from rolloutpool_common.security.api_keys import GUEST, KeyQuota, KeyScope, make_key
from rolloutpool_common.store import Store

BOTH = [KeyScope.SUBMIT, KeyScope.READ]
(ANN, ann), (BOB, bob), (CAP, cap) = (
    *(make_key(name, BOTH) for name in ("ann", "bob")),
    make_key("cap", BOTH, quota=KeyQuota(open=3, weight=5)),
)
(BOSS, boss), (PROM, prom) = make_key("boss", [KeyScope.ADMIN]), make_key("prom", [KeyScope.METRICS])
ENTRIES = ",".join(entry.entry() for entry in (ann, bob, cap, boss, prom))
NO_VOCABULARIES = {"token_pieces_mb": 0}


def auth(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def submit(client: httpx.AsyncClient, key: str, count: int, **changes: Any) -> httpx.Response:
    return await client.post("/v1/batches", json=batch(count=count, **changes), headers=auth(key))


async def test_who_is_past_a_quota_is_told_which_and_nobody_else_is_refused(redis_url: str) -> None:
    async with running_api(redis_url, api_keys_text=ENTRIES) as api, client_of(api) as client:
        accepted = await submit(client, CAP, 2)
        assert accepted.status_code == 202
        refused = await submit(client, CAP, 2)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"
        error = refused.json()["error"]
        assert error["cause"] == "quota_open"
        assert "'cap' holds too much" in error["message"]
        assert "2 of its quota of 3 (open=)" in error["message"]
        assert "in parts" not in error["message"]
        never = await submit(client, CAP, 4)
        assert "The batch alone has 4: submit it in parts" in never.json()["error"]["message"]
        assert (await submit(client, CAP, 1, weight=5)).json()["error"]["cause"] == "quota_weight"
        assert (await submit(client, ANN, 50)).status_code == 202
        counted = (await client.get("/metrics", headers=auth(PROM))).text
        assert 'rolloutpool_submits_refused_total{cause="quota_open",key="cap"} 2.0' in counted
        assert 'rolloutpool_submits_refused_total{cause="quota_open",key="ann"} 0.0' in counted
        await client.delete(accepted.headers["location"], headers=auth(CAP))
        assert (await submit(client, CAP, 3)).status_code == 202


async def test_all_callers_without_a_key_are_one(redis_url: str, worker: ScriptedWorker, store: Store) -> None:
    settings = {"api_host": "0.0.0.0", "v1_networks": "127.0.0.1", "guest_quota_text": "open=1"}
    async with running_api(redis_url, api_keys_text=ENTRIES, **settings) as api, client_of(api) as client:
        # Of a caller at another address.
        await store.batches.submit(new_batch(1, owner=GUEST, v1=True))
        refused = await client.post("/rollout", json=v1_request(rollout_id="two"))
        assert refused.status_code == 429
        assert "1 of its quota of 1" in refused.json()["detail"]
        assert (await submit(client, ANN, 5)).status_code == 202


async def test_a_flood_at_a_dead_port_closes_the_pool_for_nobody_else(
    redis_url: str, raw: Redis, worker: ScriptedWorker
) -> None:
    async with running_api(redis_url, api_keys_text=ENTRIES, **NO_VOCABULARIES) as api, client_of(api) as client:

        async def ready() -> dict[str, Any]:
            found: dict[str, Any] = (await client.get("/readyz")).json()
            return found

        assert (await ready())["submits"] == "open"
        used = int((await raw.info("memory"))["used_memory"])
        await raw.config_set("maxmemory", used + 40_000_000)
        while (last := await submit(client, ANN, 100)).status_code == 202:
            pass
        # Nobody else holds anything yet, so it is the pool that is full, for this key.
        assert last.status_code == 503
        assert int((await raw.info("memory"))["used_memory"]) < used + 8_000_000
        for _ in range(5):
            assert (await submit(client, BOB, 20)).status_code == 202
        flood = await submit(client, ANN, 1)
        assert (flood.status_code, flood.headers["retry-after"]) == (429, "30")
        assert flood.json()["error"]["cause"] == "share_bytes"
        now = await ready()
        assert now["submits"] == "limited"
        assert any("submits of some keys are refused" in warning for warning in now["warnings"])
        assert "ann" not in str(now)
        # With hardly any room at all, it is closed.
        await raw.config_set("maxmemory", int((await raw.info("memory"))["used_memory"]) + 60_000)

        async def closed() -> bool:
            return bool((await ready())["submits"] == "closed")

        await until(closed)
        assert (await submit(client, BOB, 1)).status_code in (429, 503)


async def test_who_submits_again_learns_of_its_batch_although_there_is_no_room(redis_url: str, raw: Redis) -> None:
    """The answer was lost. Without the batch's id nobody could read it, or delete it to make room."""
    async with running_api(redis_url, api_keys_text=ENTRIES, **NO_VOCABULARIES) as api, client_of(api) as client:
        asked = {**auth(ANN), "Idempotency-Key": "k"}
        accepted = await client.post("/v1/batches", json=batch(1), headers=asked)
        assert accepted.status_code == 202
        await raw.config_set("maxmemory", int((await raw.info("memory"))["used_memory"]) - 1)

        async def full() -> bool:
            return (await submit(client, ANN, 1)).status_code == 503

        await until(full)
        again = await client.post("/v1/batches", json=batch(1), headers=asked)
        assert (again.status_code, again.json()) == (200, accepted.json())
        other = await client.post("/v1/batches", json=batch(2), headers=asked)
        assert other.status_code == 409


async def test_a_body_for_which_there_is_no_memory_is_a_refusal_that_is_counted(redis_url: str, raw: Redis) -> None:
    """It is refused before it is staged, so the script that counts the others never sees it."""
    async with running_api(redis_url, api_keys_text=ENTRIES, **NO_VOCABULARIES) as api, client_of(api) as client:
        await raw.config_set("maxmemory", int((await raw.info("memory"))["used_memory"]) + 2_000_000)
        large = [{"messages": [{"role": "user", "content": "x" * 3_000_000}]}]
        document = {**batch(1), "rollouts": large}
        refused = await client.post("/v1/batches", json=document, headers=auth(ANN))
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
        counted = (await client.get("/metrics", headers=auth(PROM))).text
        assert 'rolloutpool_submits_refused_total{cause="memory",key="ann"} 1.0' in counted


async def test_annotations_of_another_owner_are_taken_as_well(redis_url: str, raw: Redis) -> None:
    async with running_api(redis_url, api_keys_text=ENTRIES, **NO_VOCABULARIES) as api, client_of(api) as client:
        mine = await submit(client, BOB, 1)
        await raw.config_set("maxmemory", int((await raw.info("memory"))["used_memory"]) + 5_000_000)
        while (await submit(client, ANN, 10)).status_code == 202:
            pass
        at = f"{mine.headers['location']}/annotations"
        body = {"items": [{"index": 0, "name": "reward", "value": 1.0}]}
        assert (await client.post(at, json=body, headers=auth(BOB))).status_code != 503


async def test_a_new_leader_counts_anew_what_an_older_release_has_deleted(redis_url: str, raw: Redis) -> None:
    await raw.hset("rp:usage", mapping={f"{what}:{owner}": 9 for what in ("bytes", "open") for owner in ("ann", "")})

    async def right() -> bool:
        return not await raw.exists("rp:usage")

    async with running_api(redis_url, api_keys_text=ENTRIES):
        await until(right)
