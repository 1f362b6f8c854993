"""The register of claims: which tokens a process may hold, and which rollouts run there."""

import asyncio

import pytest
from tests.support.batches import claim, submit

from rolloutpool_common.store import Store
from rolloutpool_worker.rollout.services import ClaimRegister, Services
from rolloutpool_worker.settings import WorkerSettings


async def nothing_to_verify() -> None:
    return


async def test_a_token_is_known_from_before_the_claim_until_the_ticket_is_done() -> None:
    claims = ClaimRegister()
    with claims.claiming() as token:
        assert token in claims
        assert len(claims) == 0
    assert token not in claims


async def test_a_running_claim_can_be_stopped_by_its_token(store: Store) -> None:
    claims = ClaimRegister()
    (uid,) = await submit(store)
    claimed = await claim(store, uid)
    begun = asyncio.Event()

    async def run() -> None:
        with claims.running(claimed, nothing_to_verify):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await begun.wait()
    assert len(claims) == 1
    claims.cancel("another token")
    claims.cancel(claimed.token)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(claims) == 0


async def test_each_start_of_a_worker_has_an_id_of_its_own(fake_redis: str) -> None:
    made = [Services(WorkerSettings(redis_url=fake_redis)) for _ in range(2)]
    assert made[0].worker_id != made[1].worker_id
    for services in made:
        await services.close()
