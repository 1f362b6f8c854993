"""Steering a run through a Python client and the real API."""

import pytest
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.capabilities.runs.claimed import ClaimedRun
from rolloutpool_common.store import ClaimRefused
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.errors import BatchRejected, NotFound, RequestRefused

MESSAGES = [{"role": "user", "content": "1 + 1"}]


async def test_a_trainer_announces_pauses_and_resumes(client: AsyncRolloutClient, worker: ScriptedWorker) -> None:
    run = "job/7 é"
    with pytest.raises(NotFound):
        await client.run(run)
    assert (await client.announce(run, 12)).policy_version == 12
    assert (await client.announce(run, "13")).policy_version == 13
    with pytest.raises(RequestRefused, match="is at version 13"):
        await client.announce(run, 12)
    with pytest.raises(BatchRejected, match="decimal integer"):
        await client.announce(run, "step-14")
    assert (await client.announce(run, 12, rollback=True)).policy_version == 12
    batch = await client.submit(
        [{"messages": MESSAGES}],
        defaults={"tokenizer_name": "tiny"},
        trainer="http://127.0.0.1:8081",
        run=run,
        max_staleness=1,
        on_stale="finish",
        lease_seconds=60,
    )
    assert batch.accepted is not None
    (uid,) = batch.accepted.rollouts
    assert (await client.pause(run)).paused_at is not None
    assert await worker.store.rollouts.claim(uid, "w1") is ClaimRefused.PAUSED
    assert [wait.waits_for for wait in (await batch.status()).waiting] == ["paused"]

    assert (await client.resume(run)).paused_at is None
    claim = await worker.claim(uid)
    assert ClaimedRun.of(claim)[1:3] == (1, "finish")
