"""kill -9 while graders run: each rollout is sampled once and gets one grade, the right one; and it is graded again."""

from pathlib import Path
from typing import Any

from tests.support.api_requests import batch
from tests.support.graders import asked
from tests.support.inside_api import running_api
from tests.support.pool import opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say
from tests.support.waiting import until_true
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer import AsyncRolloutClient

GRADED = {"grading": True}
PLUGINS = "tests.support.graders"


def graded(name: str, options: Any = None, **more: Any) -> dict[str, Any]:
    return {"grader": {"name": name, "options": options, **more}}


async def test_grades_survive_the_kill_of_their_worker(
    redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    log, go_on = tmp_path / "graders", tmp_path / "go on"
    log.touch()
    env = {"ROLLOUTPOOL_PLUGINS": PLUGINS, "GRADER_LOG": str(log), "ROLLOUTPOOL_GRADER_TIMEOUT": "20"}
    alone = [graded("hangs", str(go_on)), graded("isolated_returns", "a grade"), graded("dies", retries=0)]
    rollouts = [*alone * 2, *[graded("ranks")] * 4]
    groups = [None] * 6 + ["g"] * 4
    async with opened_pool(redis_url) as pool, scripted_trainer(tokenizer, say("8"), announces=True) as trainer:
        with started_worker(redis_url, [ROOT], **env) as first:
            announced = await first.announced(pool.store)
            assert {"ranks", "hangs"} <= set(announced.graders)
            uids = await pool.submit(rollouts, groups=groups, asks=GRADED, shared={"server_url": trainer.url})
            await until_true(lambda: len(asked(log, "hangs")) == 2)
            first.kill()
        go_on.touch()
        with started_worker(redis_url, [ROOT], **env) as second:
            await second.announced(pool.store)
            async with pool.reconciled():
                results = [await pool.result(uid, 60) for uid in uids]
            second.terminate()
            assert await second.ended() == 0, second.log()
        assert trainer.app.sampling_log.repeated() == {}
        status = await pool.store.batches.status(uids[0].rpartition("-")[0], None)
    assert [result.reward for result in results] == [0.5, 0.25, None, 0.5, 0.25, None, 0.0, 1.0, 2.0, 3.0]
    for result in results:
        assert result.samples
        assert result.grade is not None
        if result.reward is None:
            assert result.failure is not None
            assert (result.failure.kind, result.failure.category) == (FailureKind.INFRA, Category.GRADER_ERROR)
    assert status is not None
    assert {name: n for name, n in status.counts.items() if n} == {
        RolloutStatus.COMPLETED: 8,
        RolloutStatus.FAILED: 2,
    }


async def test_stored_rollouts_are_graded_again_by_a_worker(
    redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    log = tmp_path / "graders"
    log.touch()
    env = {"ROLLOUTPOOL_PLUGINS": PLUGINS, "GRADER_LOG": str(log)}
    async with (
        running_api(redis_url) as api,
        scripted_trainer(tokenizer, say("8"), announces=True) as trainer,
        AsyncRolloutClient(api.url) as client,
        opened_pool(redis_url) as pool,
    ):
        with started_worker(redis_url, [ROOT], **env) as worker:
            await worker.announced(pool.store)
            submitted = await client.submit(
                batch(3)["rollouts"],
                defaults={
                    "tokenizer_name": "rolloutpool/tiny",
                    "server_url": trainer.url,
                    **graded("returns", "a number"),
                },
            )
            results = [result async for result in submitted.results()]
            assert [result.reward for result in results] == [0.5] * 3
            again = await submitted.regrade("isolated_returns", "a grade", annotation="other", rollouts=[0, 2])
            assert (again.graded, again.total, again.failures) == (2, 2, {})
            seen = [await client.annotations(f"{submitted.batch_id}-{index}") for index in range(3)]
    assert [one.scalars.get("other") for one in seen] == [0.25, None, 0.25]
    assert seen[0].scalars["other.style"] == 0.75
    assert len(trainer.exchanges) == 3
