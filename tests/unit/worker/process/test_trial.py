"""An isolated process takes one cohort of suspects after the other, and runs the suspects of a cohort at once.

The rollouts themselves are stand-ins: what real ones do in a real process is in tests/integration/worker/test_crash.py.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.batches import announce, claim, submit
from tests.support.journals import turn_record
from tests.support.waiting import until_true

from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, Store
from rolloutpool_worker.ending import TicketOutcome
from rolloutpool_worker.process import trial
from rolloutpool_worker.process.trial import try_suspects
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.settings import WorkerSettings


class Stand:
    """What runs in place of rollouts: each makes progress once `go` is set, and is cleared."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = self.most = 0
        self.ran: list[str] = []

    async def run(self, services: Services, uid: str, *, token: str) -> TicketOutcome:
        """As `run_rollout`."""
        assert token in services.claims
        claimed = await services.store.rollouts.claim(uid, services.worker_id, services.role, token=token)
        assert isinstance(claimed, Claim)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        # Long enough for the others of the cohort to begin.
        await asyncio.sleep(0.1)
        self.running -= 1
        self.ran.append(uid)
        await services.store.rollouts.journal(claimed, [turn_record(1)], turns=1)
        await services.store.rollouts.release(claimed, clean=True)
        return TicketOutcome.CLEARED


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand()
    monkeypatch.setattr(trial, "run_rollout", stand.run)
    monkeypatch.setattr(trial, "LINGER_SECONDS", 0.2)
    monkeypatch.setattr(trial, "LOOK_SECONDS", 0.02)
    return stand


@pytest.fixture
async def services(fake_redis: str, store: Store) -> AsyncIterator[Services]:
    """Those of an isolated process with 5 slots, whose parent is `w`."""
    await announce(store, "w")
    services = Services(WorkerSettings(redis_url=fake_redis, worker_slots=5), role=WorkerRole.ISOLATED)
    await announce(store, services.worker_id, role=WorkerRole.ISOLATED)
    yield services
    await services.close()


async def suspects(store: Store, count: int) -> list[str]:
    """Rollouts that have lost two workers."""
    uids = await submit(store, count, shared={"idempotent": True})
    for victim in ("first", "second"):
        for uid in uids:
            await claim(store, uid, victim)
            await store.reconciliation.take_back(uid, victim)
        await store.workers.leave(victim)
    return uids


async def test_suspects_run_at_once_as_far_as_there_are_slots(services: Services, store: Store, stand: Stand) -> None:
    uids = await suspects(store, 12)
    stand.go.set()
    async with asyncio.timeout(20):
        await try_suspects(services, "w")
    assert sorted(stand.ran) == sorted(uids)
    assert stand.most == 5
    assert await store.workers.claims(services.worker_id) == []


async def test_suspects_that_come_while_it_lingers_need_no_new_process(
    services: Services, store: Store, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "LINGER_SECONDS", 5.0)
    stand.go.set()
    trying = asyncio.create_task(try_suspects(services, "w"))
    await asyncio.sleep(0.1)
    uids = await suspects(store, 2)
    await until_true(lambda: sorted(stand.ran) == sorted(uids), 4)
    services.drain.begin()
    await trying


async def test_after_the_drain_began_it_takes_no_further_cohort(services: Services, store: Store, stand: Stand) -> None:
    await suspects(store, 12)
    trying = asyncio.create_task(try_suspects(services, "w"))
    await until_true(lambda: stand.running == 5)
    services.drain.begin()
    stand.go.set()
    async with asyncio.timeout(20):
        await trying
    assert len(stand.ran) == 5
