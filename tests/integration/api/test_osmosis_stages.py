"""What the Osmosis wire says of a rollout between its claim and its end: that it is graded, and that it is active."""

import asyncio
from typing import Any

import httpx
from tests.support.api_callers import auth, shared_api
from tests.support.controller import accepted, poll, request, uid_of
from tests.support.durable_redis import durable_redis
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker, plain_result
from tests.support.waiting import until

from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.store import Store

GRADED: dict[str, Any] = {"grade": True, "metadata": {"rolloutpool": {"grader": {"name": "judge"}}}}


async def test_a_grade_is_a_status_of_its_own_and_the_reward(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    await worker.announce(graders=["judge"])
    token = await accepted(client, grader_timeout_sec=40, **GRADED)
    claim = await worker.claim(await uid_of(store))
    assert claim.spec.grader is not None
    assert (claim.spec.grader.name, claim.spec.grader.deadline_seconds) == ("judge", 40)
    assert (await poll(client, token)).json()["status"] == "running"
    waiting = asyncio.create_task(poll(client, token))
    await asyncio.sleep(0.05)
    result = plain_result(claim, labels=claim.spec.labels)
    assert await KeptRollouts(store).begin(claim, result, seconds=40, group=None) == "ok"
    # The conversation is complete, which is a change of the status.
    assert (await asyncio.wait_for(waiting, 10)).json()["status"] == "grading"
    await store.rollouts.finish(claim, result.model_copy(update={"reward": 0.25, "reward_parts": {"style": 1.0}}))
    ended = (await poll(client, token)).json()
    assert (ended["status"], ended["sample"]["reward"], ended["sample"]["metrics"]["style"]) == ("success", 0.25, 1.0)


async def test_what_is_graded_can_be_cancelled(client: httpx.AsyncClient, worker: ScriptedWorker, store: Store) -> None:
    await worker.announce(graders=["judge"])
    token = await accepted(client, **GRADED)
    claim = await worker.claim(await uid_of(store))
    await KeptRollouts(store).begin(claim, plain_result(claim), seconds=40, group=None)
    answer = await client.post("/rollout/cancel", json={"all": True})
    assert answer.json()["dispositions"] == {"run7-row3-0": "cancelled_running"}
    assert (await poll(client, token)).json()["status"] == "cancelled"


V1_HEALTH = b'{"status":"healthy","service":"rollout-server"}'
ANY_KEY = {"authorization": "Bearer any"}


async def test_health_with_a_key_says_what_is_active(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    async def active() -> int:
        health = (await client.get("/health", headers=ANY_KEY)).json()
        assert health["instance_id"] == health["process_id"] == name
        assert health["lifecycle"]["accepting_rollouts"] is True
        found: int = health["lifecycle"]["active_rollouts"]
        return found

    name = (await client.get("/health", headers=ANY_KEY)).json()["process_id"]
    assert await active() == 0
    await accepted(client, "a")
    await accepted(client, "b")
    assert await active() == 2
    await worker.end(await uid_of(store, "a"))
    assert await active() == 1
    await client.post("/rollout/cancel", json={"all": True})
    assert await active() == 0
    # Protocol v1's trainers send no key.
    assert (await client.get("/health")).content == V1_HEALTH


async def test_health_counts_the_caller_s_own(redis_url: str) -> None:
    async with shared_api(redis_url) as client:

        async def active(name: str) -> int:
            health = (await client.get("/health", headers=auth(name))).json()
            found: int = health["lifecycle"]["active_rollouts"]
            return found

        await client.post("/rollout", json=request("job-1"), headers=auth("ann"))
        assert [await active(name) for name in ("ann", "ann-read", "bob", "boss")] == [1, 1, 0, 0]
        # A wrong key is no key: probes with an outdated one get their answer.
        for headers in ({}, ANY_KEY):
            assert (await client.get("/health", headers=headers)).content == V1_HEALTH


async def test_health_while_redis_is_away_says_that_nothing_is_idle() -> None:
    with durable_redis() as server:
        async with running_api(server.url) as api, client_of(api) as client:
            before = (await client.get("/health", headers=ANY_KEY)).json()
            server.kill()
            away = (await client.get("/health", headers=ANY_KEY)).json()
            assert away["lifecycle"] == {"accepting_rollouts": False, "active_rollouts": 1}
            assert away["process_id"] == before["process_id"]
            assert (await client.get("/health")).content == V1_HEALTH
            server.start()

            async def idle() -> bool:
                health = (await client.get("/health", headers=ANY_KEY)).json()
                assert health["process_id"] == before["process_id"]
                return bool(health["lifecycle"]["active_rollouts"] == 0)

            await until(idle)
