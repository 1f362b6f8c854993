"""Annotations through a Python client and the real API."""

import pytest
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_trainer.capabilities.grading import calls
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.errors import BatchRejected


async def test_annotations_in_as_many_requests_as_they_need(
    client: AsyncRolloutClient, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_BODY", 100)
    rollouts = [{"messages": [{"role": "user", "content": "1 + 1"}], "n": 8}]
    batch = await client.submit(rollouts, defaults={"tokenizer_name": "tiny"}, trainer="http://127.0.0.1:8081")
    assert batch.accepted is not None
    uids = batch.accepted.rollouts
    await worker.end(uids[0])
    await batch.annotate({"reward": {uid: float(n) for n, uid in enumerate(uids)}}, streams={"kl": {0: []}})
    assert await batch.table(["annotations.reward"]) == {"annotations.reward": [float(n) for n in range(8)]}
    (group,) = await batch.group_statistics()
    assert (group.annotated, group.mean, group.zero_spread) == (8, 3.5, False)
    found = await client.annotations(uids[0])
    assert (found.scalars, found.streams) == ({"reward": 0.0}, {"kl": []})
    with pytest.raises(BatchRejected):
        await batch.annotate({"reward": {99: 1.0}})
