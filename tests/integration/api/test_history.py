"""`GET /v1/rollouts/{uid}/history`: each attempt, and why it was queued again."""

import httpx
from redis.asyncio import Redis
from tests.support.api_callers import submit
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import until

from rolloutpool_common.protocol.history import MAX_ATTEMPTS_KEPT, RolloutHistory
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.store import Store


async def history(client: httpx.AsyncClient, uid: str) -> RolloutHistory:
    response = await client.get(f"/v1/rollouts/{uid}/history")
    assert response.status_code == 200, response.text
    return RolloutHistory.model_validate_json(response.content)


async def test_from_queue_to_end(client: httpx.AsyncClient, store: Store, worker: ScriptedWorker) -> None:
    (uid,) = await submit(client)
    new = await history(client, uid)
    assert (new.status, new.attempts, new.ended_ms, new.not_before_ms) == ("queued", [], None, None)

    first = await worker.claim(uid)
    (running,) = (await history(client, uid)).attempts
    assert (running.attempt, running.worker, running.outcome, running.ended_ms) == (1, "w1", "running", None)
    why = "network_error: no route " + "x" * 1000
    await store.rollouts.give_back(first, clean=True, counter="retries", delay_s=30, why=why)
    waiting = await history(client, uid)
    assert waiting.not_before_ms is not None
    assert 0 < waiting.not_before_ms - waiting.now_ms <= 30_000
    (retried,) = waiting.attempts
    assert (retried.outcome, retried.reason, retried.detail) == ("requeued", "retries", why[:300])
    assert retried.delay_ms == 30_000

    await store.rollouts.release(await worker.claim(uid), clean=True)
    dying = ScriptedWorker(store, "w2")
    await dying.announce()
    await dying.claim(uid)
    # The API's reconciler finds the report, and queues its rollout again.
    await store.workers.report_end("w2", ProcessEnd.of(-11))

    async def requeued() -> bool:
        return len((await history(client, uid)).attempts) == 3 and (await history(client, uid)).status == "queued"

    await until(requeued)
    result = await worker.end(uid)
    ended = await history(client, uid)
    assert [(a.attempt, a.worker, a.outcome, a.reason) for a in ended.attempts] == [
        (1, "w1", "requeued", "retries"),
        (2, "w1", "requeued", "drains"),
        (3, "w2", "requeued", "crashes"),
        (4, "w1", "completed", None),
    ]
    assert ended.attempts[2].detail == "signal:11"
    times = [at for a in ended.attempts for at in (a.claimed_ms, a.ended_ms)]
    assert times == sorted(times, key=lambda at: at or 0)
    assert ended.accepted_ms <= (times[0] or 0)
    assert (times[-1], result.uid) == (ended.ended_ms, uid)


async def test_a_rollout_cancelled_in_the_queue_had_no_attempt(client: httpx.AsyncClient) -> None:
    (uid,) = await submit(client)
    await client.delete(f"/v1/rollouts/{uid}")
    ended = await history(client, uid)
    assert (ended.status, ended.attempts) == ("cancelled", [])
    assert ended.ended_ms is not None


async def test_only_the_last_attempts_are_kept(
    client: httpx.AsyncClient, store: Store, worker: ScriptedWorker, raw: Redis
) -> None:
    (uid,) = await submit(client)
    for _ in range(MAX_ATTEMPTS_KEPT + 5):
        await store.rollouts.release(await worker.claim(uid), clean=True)
    found = (await history(client, uid)).attempts
    assert [found[0].attempt, found[-1].attempt, len(found)] == [6, MAX_ATTEMPTS_KEPT + 5, MAX_ATTEMPTS_KEPT]
    await worker.end(uid)
    assert await raw.exists(f"rp:rollout:{uid}:history")
    await client.delete(f"/v1/batches/{uid.partition('-')[0]}", params={"purge": "true"})
    assert [key async for key in raw.scan_iter(f"rp:*{uid}*")] == []
