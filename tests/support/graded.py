"""Graded rollouts of a worker inside the test, and what the store shows of them."""

from collections.abc import Sequence
from typing import Any

from tests.support.batches import new_batch, status_of, uids_of
from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import ScriptedTrainer

from rolloutpool_common.outcomes import Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Store
from rolloutpool_common.store import keys as store_keys


def graded(name: str, options: Any = None, **more: Any) -> dict[str, Any]:
    return {"grader": {"name": name, "options": options, **more}}


async def submit_graded(
    worker: InsideWorker, trainer: ScriptedTrainer, *rollouts: dict[str, Any], group: str | None = None, **more: Any
) -> list[str]:
    """Submits graded rollouts, in one group or in none."""
    groups = [group] * len(rollouts)
    batch = new_batch(list(rollouts), shared={"server_url": trainer.url}, groups=groups, asks={"grading": True}, **more)
    await worker.services.store.batches.submit(batch)
    return uids_of(batch)


async def counts(store: Store, uid: str) -> dict[str, int]:
    """Of the rollout's batch, those that are not 0; they add up to its rollouts."""
    found = await status_of(store, uid)
    assert sum(found.counts.values()) == found.total
    assert min(found.counts.values()) >= 0
    return {name.value: n for name, n in found.counts.items() if n}


async def check_clean(store: Store, uids: Sequence[str]) -> None:
    """Nothing of the stage is left of ended rollouts."""
    redis = store.rollouts._redis
    for uid in uids:
        assert await redis.exists(store_keys.rollout(uid, "ungraded"), store_keys.rollout(uid, "grades")) == 0
        assert await redis.hmget(store_keys.rollout(uid), "stage", "leads", "token") == [None] * 3
    assert await redis.zcard("rp:grading") == 0


def failure_of(result: RolloutResult) -> tuple[FailureKind, Category]:
    """Kind and category; an infra failure has all that was sampled, and no reward."""
    failure = result.failure
    assert failure is not None
    assert (result.status, result.finish_reason) == (RolloutStatus.FAILED, FinishReason.ERROR)
    assert (result.reward, result.reward_parts, result.token_rewards) == (None, {}, None)
    assert result.samples
    assert result.grade is not None
    assert result.grade.finish_reason is FinishReason.STOP
    return failure.kind, failure.category


async def leaders(store: Store) -> list[str]:
    """The rollouts that are queued to have their groups graded."""
    redis = store.rollouts._redis
    names = [name.decode() async for name in redis.scan_iter(match=store_keys.rollout("*"))]
    uids = [name.removeprefix(store_keys.rollout("")) for name in names if name.count(":") == 2]
    return sorted([uid for uid in uids if await redis.hget(store_keys.rollout(uid), "leads")])


async def pass_deadline(store: Store, *uids: str, group: str | None = None) -> None:
    """Makes the time of these rollouts' grader be over, and that of their group."""
    redis = store.rollouts._redis
    await redis.zadd("rp:grading", dict.fromkeys(uids, 1))
    if group is not None:
        batch_id = uids[0].rpartition("-")[0]
        await redis.hset(store_keys.batch(batch_id, "group_counts"), f"due:{group}", 1)
