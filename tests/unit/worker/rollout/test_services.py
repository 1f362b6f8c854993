"""The register of claims: which tokens a process may hold, and which rollouts run under them."""

import asyncio
from pathlib import Path

import pytest
from tests.support.claims import claim_of

from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import SecretsFileInvalid
from rolloutpool_worker.rollout.services import BATCHES, ClaimRegister, SeenBatches, Services
from rolloutpool_worker.settings import WorkerSettings


async def verified() -> None:
    """Stands for a claim that Redis still has."""


async def test_a_running_claim_is_stopped_by_its_token_and_no_other_is() -> None:
    claims = ClaimRegister()
    ended: list[str] = []

    async def run(token: str) -> None:
        with claims.running(claim_of(token=token), verified):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(token)

    tasks = [asyncio.create_task(run(token)) for token in ("first", "second")]
    await asyncio.sleep(0)
    assert len(claims) == 2
    assert {claim.task for claim in claims.current()} == set(tasks)
    claims.cancel("unknown")
    claims.cancel("first")
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert ended == ["first"]
    assert [claim.task for claim in claims.current()] == tasks[1:]
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert len(claims) == 0


async def test_a_claim_that_made_room_asks_for_more_tickets_only_where_some_wait() -> None:
    services = Services(WorkerSettings(redis_url="redis://127.0.0.1:1/0"))
    services.more_waiting(claim_of(more_waiting=False))
    assert not services.refill.is_set()
    services.more_waiting(claim_of(more_waiting=True))
    assert services.refill.is_set()
    await services.close()


async def test_an_isolated_process_has_few_slots_and_each_start_a_name_of_its_own() -> None:
    settings = WorkerSettings(redis_url="redis://127.0.0.1:1/0", worker_slots=99)
    shared, isolated = Services(settings), Services(settings, role=WorkerRole.ISOLATED)
    assert (shared.role, shared.settings.worker_slots) == (WorkerRole.SHARED, 99)
    assert (isolated.role, isolated.settings.worker_slots) == (WorkerRole.ISOLATED, 64)
    assert shared.worker_id != isolated.worker_id
    await shared.close()
    await isolated.close()


def test_a_key_file_that_is_not_there_keeps_a_process_from_starting(tmp_path: Path) -> None:
    with pytest.raises(SecretsFileInvalid):
        Services(WorkerSettings(redis_url="redis://127.0.0.1:1/0", secrets_file=tmp_path / "missing"))


def test_a_batch_is_first_once_for_each_list_of_tools_and_only_the_last_ones_are_remembered() -> None:
    seen = SeenBatches()
    assert [seen.is_first("b0", tools) for tools in (None, None, ["add"], ["add"], [], None)] == [
        *(True, False, True),
        *(False, True, False),
    ]
    assert all(seen.is_first(f"b{n}", None) for n in range(1, BATCHES + 1))
    assert not seen.is_first(f"b{BATCHES}", None)
    assert seen.is_first("b0", None)
