"""The stage of grades: what is kept, asked, tried again and delivered; an infra failure is never a reward of 0."""

import asyncio
import importlib
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.batches import OWNER, status_of, view_of
from tests.support.games import RIGHT, SEED
from tests.support.graded import check_clean, counts, failure_of, graded, pass_deadline, submit_graded
from tests.support.graders import asked
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say, status
from tests.support.waiting import until_true

from rolloutpool_common.capabilities.grading.stored import Grading
from rolloutpool_common.outcomes import Boundary, Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.rows import ENDED_FIELDS
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_common.store import keys as store_keys
from rolloutpool_worker.capabilities.grading.base import GraderBusy
from rolloutpool_worker.capabilities.grading.host import GraderHost

ROOT = Path(__file__).parents[5]


pytestmark = pytest.mark.usefixtures("log")


async def test_a_rollout_is_delivered_with_its_grade(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(
            inside, trainer, graded("returns", "a grade"), graded("returns", "rewards per token"), {}
        )
        assert [await inside.take(uid) for uid in uids] == ["completed"] * 3
    first, second, plain = [await inside.result(uid) for uid in uids]
    assert (first.reward, first.reward_parts, first.token_rewards) == (0.25, {"style": 0.75, "length": -0.5}, None)
    assert first.grade is not None
    assert (first.grade.grader, first.grade.tries, first.grade.members) == ("returns", 1, None)
    assert (first.status, first.finish_reason, first.failure) == (RolloutStatus.COMPLETED, FinishReason.STOP, None)
    assert second.token_rewards == [[float(n) for n in range(len(second.samples[0].response_ids))]]
    assert (plain.reward, plain.grade) == (None, None)
    assert asked(log) == [f"returns {uids[0]}", f"returns {uids[1]}"]
    assert await counts(store, uids[0]) == {"completed": 3}
    table = await store.rows.read(uids[0].rpartition("-")[0])
    assert table is not None
    assert [row[list(ENDED_FIELDS).index("reward")] for row in table.rows] == [0.25, 1.0, None]
    await check_clean(store, uids)


@pytest.mark.parametrize("name", ["nan", "a token too many"])
async def test_nonsense_is_a_failure_and_is_not_asked_for_again(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, name: str
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        (uid,) = await submit_graded(inside, trainer, graded("returns", name))
        assert await inside.take(uid) == "failed"
    result = await inside.result(uid)
    assert failure_of(result) == (FailureKind.INFRA, Category.GRADE_INVALID)
    assert result.failure is not None
    assert result.failure.boundary is Boundary.GRADER
    assert result.grade is not None
    assert result.grade.tries == 1
    await check_clean(store, [uid])


async def test_a_grader_that_fails_is_asked_again_and_nothing_is_sampled_again(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        (uid,) = await submit_graded(inside, trainer, graded("fails", 2))
        for tries in (1, 2):
            assert await inside.take(uid) == "retried"
            seen = await view_of(store, uid)
            assert (seen.status, seen.attempt, seen.result) == (RolloutStatus.GRADING, tries, None)
            assert seen.waiting is not None
            assert (seen.waiting.waits_for, seen.waiting.tries) == (WaitsFor.GRADER, tries)
            assert "RuntimeError: secret detail (graders.py:" in seen.waiting.message
            assert await counts(store, uid) == {"grading": 1}
        history = await store.histories.read(uid, OWNER)
        assert history is not None
        assert [(entry.reason, entry.delay_ms) for entry in history.attempts[:2]] == [
            ("grade_retries", 1000),
            ("grade_retries", 2000),
        ]
        batch = await status_of(store, uid)
        assert [(entry.waits_for, entry.rollouts) for entry in batch.waiting] == [(WaitsFor.GRADER, 1)]
        assert await inside.take(uid) == "completed"
        assert len(trainer.of(uid)) == 1
    result = await inside.result(uid)
    assert result.grade is not None
    assert (result.reward, result.grade.tries, len(asked(log))) == (0.5, 3, 3)
    await check_clean(store, [uid])


async def test_a_grader_that_is_busy_for_long_is_asked_later_and_that_is_no_try(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object, **__: object) -> None:
        raise GraderBusy

    async with scripted_trainer(tokenizer, say("8")) as trainer:
        (uid,) = await submit_graded(inside, trainer, graded("returns", "a number", retries=0))
        with monkeypatch.context() as patch:
            patch.setattr(GraderHost, "ask", busy)
            assert await inside.take(uid) == "deferred"
        assert (await view_of(store, uid)).status is RolloutStatus.GRADING
        history = await store.histories.read(uid, OWNER)
        assert history is not None
        assert (history.attempts[0].reason, history.attempts[0].delay_ms) == ("capacity", 10_000)
        assert await inside.take(uid) == "completed"
        assert len(trainer.of(uid)) == 1
    result = await inside.result(uid)
    assert result.grade is not None
    assert (result.reward, result.grade.tries) == (0.5, 1)
    await check_clean(store, [uid])


async def test_when_the_tries_are_over_the_result_says_so_and_has_no_reward(
    fake_redis: str, tokenizers: TokenizerCache, store: Store, tokenizer: ChatTokenizer
) -> None:
    # The rollout's own retries are others: the grader's do not take any of them.
    async with (
        inside_worker(fake_redis, tokenizers, infra_retries=5) as worker,
        scripted_trainer(tokenizer, say("8")) as trainer,
    ):
        (uid,) = await submit_graded(worker, trainer, graded("fails", 9, retries=1))
        assert [await worker.take(uid) for _ in range(2)] == ["retried", "failed"]
        result = await worker.result(uid)
        assert failure_of(result) == (FailureKind.INFRA, Category.GRADER_ERROR)
        assert result.grade is not None
        assert result.grade.tries == 2
        assert await counts(store, uid) == {"failed": 1}


async def test_wrong_options_fail_and_a_grader_that_this_worker_lacks_waits_before_anything_is_sampled(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(inside, trainer, graded("refuses"), graded("nobody", retries=0))
        assert [await inside.take(uid) for uid in uids] == ["failed", "deferred"]
        assert len(trainer.exchanges) == 1
    assert failure_of(await inside.result(uids[0])) == (FailureKind.REQUEST, Category.VALIDATION_ERROR)


async def test_a_grader_that_hangs_is_given_up_at_its_deadline(
    fake_redis: str, tokenizers: TokenizerCache, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with (
        inside_worker(fake_redis, tokenizers, grader_timeout=0.2) as worker,
        scripted_trainer(tokenizer, say("8")) as trainer,
    ):
        slow, late = await submit_graded(
            worker, trainer, graded("hangs", retries=1, deadline_seconds=60), graded("disobeys", deadline_seconds=0.1)
        )
        assert await worker.take(slow) == "retried"
        assert [await worker.take(uid) for uid in (slow, late)] == ["failed", "failed"]
        assert failure_of(await worker.result(slow)) == (FailureKind.INFRA, Category.GRADER_ERROR)
        result = await worker.result(late)
        assert failure_of(result) == (FailureKind.INFRA, Category.GRADE_LATE)
        # It was asked, and did not answer in time.
        assert result.grade is not None
        assert result.grade.tries == 1
        assert result.grade.ms is not None


async def test_only_a_completed_conversation_is_graded(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    async with scripted_trainer(tokenizer, status(400)) as trainer:
        (uid,) = await submit_graded(inside, trainer, graded("returns", "a number"))
        assert await inside.take(uid) == "failed"
    result = await inside.result(uid)
    assert (result.reward, result.grade) == (None, None)
    assert asked(log) == []
    await check_clean(store, [uid])


async def test_a_rollouts_own_deadline_does_not_end_its_grading(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        (uid,) = await submit_graded(inside, trainer, graded("fails", 1), deadline_s=5.0)
        assert await inside.take(uid) == "retried"
        redis = store.rollouts._redis
        await redis.hset(store_keys.batch(uid.rpartition("-")[0], "deadlines"), "0", 1)
        assert await redis.zcard(store_keys.DEADLINES) == 0
        assert await inside.take(uid) == "completed"
    assert (await inside.result(uid)).reward == 0.5


@pytest.mark.parametrize("end", ["drained", "killed"])
async def test_a_worker_that_ends_while_it_grades_leaves_the_grade_to_another(
    fake_redis: str, tokenizers: TokenizerCache, store: Store, tokenizer: ChatTokenizer, log: Path, end: str
) -> None:
    go_on = log.with_name("go on")
    async with (
        inside_worker(fake_redis, tokenizers) as first,
        inside_worker(fake_redis, tokenizers) as second,
        scripted_trainer(tokenizer, say("8")) as trainer,
    ):
        (uid,) = await submit_graded(first, trainer, graded("hangs", str(go_on)))
        ticket = asyncio.create_task(first.take(uid))
        await until_true(lambda: asked(log))
        assert await counts(store, uid) == {"grading": 1}
        assert (await view_of(store, uid)).status is RolloutStatus.GRADING
        if end == "drained":
            first.services.drain.begin()
            ticket.cancel()
            assert await ticket == "drained"
        else:
            # It goes on, and was taken for dead: it may write nothing any more.
            assert await store.reconciliation.take_back(uid, first.services.worker_id) >= 0
        go_on.touch()
        assert await second.take(uid) == "completed"
        if end == "killed":
            # Nothing of it counted: the second worker's end came first.
            assert await ticket in ("lost", "completed")
        assert len(trainer.of(uid)) == 1
    result = await second.result(uid)
    assert (result.reward, result.attempt) == (0.5, 1)
    assert len(asked(log)) == 2
    assert await counts(store, uid) == {"completed": 1}
    await check_clean(store, [uid])


async def test_a_rollout_can_be_cancelled_while_it_is_graded(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        (uid,) = await submit_graded(inside, trainer, graded("hangs"))
        ticket = asyncio.create_task(inside.take(uid))
        await until_true(lambda: asked(log))
        assert await store.rollouts.cancel(uid) is RolloutStatus.CANCELLED
        (running,) = inside.services.claims.current()
        running.task.cancel()
        assert await ticket == "stopped"
    assert await counts(store, uid) == {"cancelled": 1}
    await check_clean(store, [uid])


async def test_a_grade_that_nobody_makes_in_time_is_given_up(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        (uid,) = await submit_graded(inside, trainer, graded("fails", 1))
        assert await inside.take(uid) == "retried"
        assert await Grading().tidy(store.connection, store.reconciliation) == 0
        await pass_deadline(store, uid)
        assert await Grading().tidy(store.connection, store.reconciliation) == 1
    assert failure_of(await inside.result(uid)) == (FailureKind.INFRA, Category.GRADE_LATE)
    assert await counts(store, uid) == {"failed": 1}
    await check_clean(store, [uid])


async def test_a_grader_has_the_last_word_over_an_environment(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "games").touch()
    monkeypatch.setenv("GAME_LOG", str(tmp_path / "games"))
    environment = {"environment": {"name": "text_game", "seed": SEED}}
    async with scripted_trainer(tokenizer, say(f"{RIGHT}")) as trainer:
        uids = await submit_graded(
            inside,
            trainer,
            environment,
            {**environment, **graded("returns", "a number")},
            {**environment, **graded("returns", "nan")},
        )
        for uid in uids:
            await inside.take(uid)
    alone, both, none = [await inside.result(uid) for uid in uids]
    assert {one.environment.reward for one in (alone, both, none) if one.environment} == {1.0}
    assert (alone.reward, both.reward, none.reward) == (1.0, 0.5, None)


async def test_the_page_about_environments_does_what_it_says(
    inside: InsideWorker, tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of docs/tools-and-environments.md, in its order: the file, what is submitted, and further graders."""
    # What it says of packages is in tests/environments: these are not installed here.
    page = (ROOT / "docs" / "tools-and-environments.md").read_text()
    head, _, rest = page.partition("\n## Environments\n")[2].partition("\n### Packages\n")
    graders = rest.partition("\n## Graders\n")[2].partition("\n## ")[0]
    plugin, submitted, more = re.findall(r"```python\n(.*?)```", head + graders, re.DOTALL)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("guessing", plugin), ("more_graders", more)):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.import_module(name)
    names: dict[str, Any] = {}
    exec(submitted, names)
    rollout = names["rollout"]
    number = random.Random(rollout["environment"]["seed"]).randint(1, rollout["environment"]["task"]["most"])
    others = [{**rollout, "grader": {"name": name}} for name in ("last_token", "shortest")]
    async with scripted_trainer(tokenizer, say("I guess 0"), say(f"{number}")) as trainer:
        uids = await submit_graded(inside, trainer, rollout, *others)
        assert [await inside.take(uid) for uid in uids] == ["completed"] * 3
    quick, last, shortest = [await inside.result(uid) for uid in uids]
    assert (quick.reward, quick.reward_parts) == (0.8, {"right": 1.0})
    assert quick.environment is not None
    assert (quick.environment.reward, quick.environment.done) == (0.5, True)
    assert last.token_rewards is not None
    assert (sum(last.token_rewards[0]), last.token_rewards[0][-1]) == (1.0, 1.0)
    # Without a group it is alone.
    assert shortest.reward == 1.0
