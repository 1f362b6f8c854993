"""Graders of groups: held until the last rollout has ended or the deadline passes, then the grades of one call."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.batches import view_of
from tests.support.graded import check_clean, counts, failure_of, graded, leaders, pass_deadline, submit_graded
from tests.support.graders import asked
from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, hang, say, status

from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.capabilities.grading.stored import Grading
from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim, Store, StoreUnavailable

pytestmark = pytest.mark.usefixtures("log")


async def end_before_delivery(inside: InsideWorker, uid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes a rollout whose grader is asked; the attempt ends before anything is delivered."""

    async def never(_: KeptRollouts, batch_id: str, result: RolloutResult) -> bool:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(KeptRollouts, "deliver", never)
        with pytest.raises(MemoryError):
            await inside.take(uid)


async def test_a_group_is_graded_together_when_its_last_rollout_has_ended(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(inside, trainer, *[graded("ranks")] * 3, group="g")
        for held, uid in enumerate(uids, 1):
            assert await inside.take(uid) == "grading"
            assert (await view_of(store, uid)).status is RolloutStatus.GRADING
            assert await counts(store, uid) == {"grading": held, **({"queued": 3 - held} if held < 3 else {})}
        # A second ticket of a held rollout does nothing.
        assert asked(log) == []
        assert await inside.take(uids[1]) == "taken"
        assert [len(trainer.of(uid)) for uid in uids] == [1, 1, 1]
        assert inside.services.refill.is_set()
        assert await leaders(store) == [uids[0]]
        assert await inside.take(uids[0]) == "completed"
    results = [await inside.result(uid) for uid in uids]
    assert [result.reward for result in results] == [0.0, 1.0, 2.0]
    assert {result.reward_parts["members"] for result in results} == {3.0}
    assert [result.grade.members for result in results if result.grade] == [3, 3, 3]
    assert asked(log) == ["ranks " + " ".join(uids)]
    assert await counts(store, uids[0]) == {"completed": 3}
    await check_clean(store, uids)


async def test_siblings_that_fail_or_are_cancelled_count_as_ended(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    scripts: dict[str, list[Step]] = {"bad": [status(400)], "slow": [hang()]}
    async with scripted_trainer(tokenizer, say("8"), scripts=scripts) as trainer:
        rollouts = [{"rollout_id": name, **graded("ranks")} for name in ("a", "bad", "slow", "b")]
        uids = await submit_graded(inside, trainer, *rollouts, group="g")
        assert [await inside.take(uid) for uid in (uids[0], uids[1], uids[3])] == ["grading", "failed", "grading"]
        assert await leaders(store) == []
        # The last one that the others wait for, and it never ran.
        assert await store.rollouts.cancel(uids[2]) is RolloutStatus.CANCELLED
        assert await leaders(store) == [uids[0]]
        # The one that leads is cancelled: another one leads.
        assert await store.rollouts.cancel(uids[0]) is RolloutStatus.CANCELLED
        assert uids[3] in await leaders(store)
        assert await inside.take(uids[3]) == "completed"
    assert (await inside.result(uids[3])).reward == 0.0
    assert asked(log) == [f"ranks {uids[3]}"]
    assert await counts(store, uids[0]) == {"completed": 1, "failed": 1, "cancelled": 2}
    await check_clean(store, uids)


async def test_a_group_is_held_until_its_deadline_and_no_longer(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(inside, trainer, *[graded("ranks")] * 3, group="g")
        assert [await inside.take(uid) for uid in uids[:2]] == ["grading", "grading"]
        assert await Grading().tidy(store.connection, store.reconciliation) == 0
        await pass_deadline(store, *uids[:2], group="g")
        assert await Grading().tidy(store.connection, store.reconciliation) == 2
        # The last one comes too late, and is not held.
        assert await inside.take(uids[2]) == "failed"
    for uid in uids:
        assert failure_of(await inside.result(uid)) == (FailureKind.INFRA, Category.GROUP_GRADE_LATE)
    assert asked(log) == []
    assert await counts(store, uids[0]) == {"failed": 3}
    await check_clean(store, uids)


async def test_a_restart_of_redis_while_a_result_is_kept_does_not_shorten_the_deadline(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a campaign: the answer was lost as Redis ended, and the claims were verified before the next try."""
    tries, keep = 0, KeptRollouts.begin

    async def away_at_first(kept: KeptRollouts, claim: Claim, result: RolloutResult, **how: Any) -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            for running in inside.services.claims.current():
                await running.verify()
            raise StoreUnavailable
        return await keep(kept, claim, result, **how)

    monkeypatch.setattr(KeptRollouts, "begin", away_at_first)
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(inside, trainer, *[graded("ranks")] * 2, group="g")
        assert [await inside.take(uid) for uid in uids] == ["grading", "grading"]
        await asyncio.sleep(0.01)
        assert await Grading().tidy(store.connection, store.reconciliation) == 0
        assert await inside.take(uids[0]) == "completed"
    assert tries == 3
    assert [(await inside.result(uid)).reward for uid in uids] == [0.0, 1.0]
    await check_clean(store, uids)


async def test_a_group_grader_that_fails_is_asked_again_and_then_fails_all(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        good = await submit_graded(inside, trainer, *[graded("ranks", 1)] * 2, group="g")
        bad = await submit_graded(inside, trainer, *[graded("too_few")] * 2, group="g")
        for uid in (*good, *bad):
            assert await inside.take(uid) == "grading"
        assert await inside.take(good[0]) == "retried"
        assert await counts(store, good[0]) == {"grading": 2}
        assert await inside.take(good[0]) == "completed"
        assert await inside.take(bad[0]) == "failed"
    assert [(await inside.result(uid)).reward for uid in good] == [0.0, 1.0]
    for uid in bad:
        assert failure_of(await inside.result(uid)) == (FailureKind.INFRA, Category.GRADE_INVALID)
    await check_clean(store, [*good, *bad])


async def test_all_members_have_the_grades_of_one_call_although_their_worker_ends(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends when it has delivered one of three: the next one has what was kept, and asks nobody."""
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(inside, trainer, *[graded("ranks")] * 3, group="g")
        for uid in uids:
            assert await inside.take(uid) == "grading"
        delivered: list[str] = []
        deliver = KeptRollouts.deliver

        async def once(kept: KeptRollouts, batch_id: str, result: RolloutResult) -> bool:
            if delivered:
                raise MemoryError
            delivered.append(result.uid)
            return await deliver(kept, batch_id, result)

        with monkeypatch.context() as patched:
            patched.setattr(KeptRollouts, "deliver", once)
            with pytest.raises(MemoryError):
                await inside.take(uids[0])
        assert await counts(store, uids[0]) == {"grading": 2, "completed": 1}
        assert await inside.take(uids[0]) == "completed"
    assert [(await inside.result(uid)).reward for uid in uids] == [0.0, 1.0, 2.0]
    assert len(asked(log, "ranks")) == 1
    await check_clean(store, uids)


async def test_the_next_leader_delivers_the_grades_that_are_kept(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends after the call of the grader, and then the rollout that leads is cancelled."""
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(inside, trainer, *[graded("ranks")] * 3, group="g")
        for uid in uids:
            assert await inside.take(uid) == "grading"
        await end_before_delivery(inside, uids[0], monkeypatch)
        assert await store.rollouts.cancel(uids[0]) is RolloutStatus.CANCELLED
        assert await inside.take(uids[1]) == "completed"
    assert [(await inside.result(uid)).reward for uid in uids] == [None, 1.0, 2.0]
    assert len(asked(log)) == 1
    await check_clean(store, uids)


async def test_a_group_whose_grades_are_kept_is_not_late(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        uids = await submit_graded(inside, trainer, *[graded("ranks")] * 2, group="g")
        for uid in uids:
            assert await inside.take(uid) == "grading"
        await end_before_delivery(inside, uids[0], monkeypatch)
        await pass_deadline(store, *uids, group="g")
        assert await Grading().tidy(store.connection, store.reconciliation) == 0
        assert await inside.take(uids[0]) == "completed"
    assert [(await inside.result(uid)).reward for uid in uids] == [0.0, 1.0]
