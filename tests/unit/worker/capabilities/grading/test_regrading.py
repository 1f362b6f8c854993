"""Rollouts that have ended are graded again: annotations are added, once, and no result changes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.batches import claim, new_batch, result_of, uids_of
from tests.support.graders import asked
from tests.support.inside_worker import InsideWorker, inside_worker

from rolloutpool_common.capabilities.grading.annotating import Regrade, RegradeState
from rolloutpool_common.capabilities.grading.annotations import Annotations
from rolloutpool_common.capabilities.grading.errors import GraderFault
from rolloutpool_common.capabilities.grading.kept import without_grade
from rolloutpool_common.capabilities.grading.regrades import REGRADE_TASK, RegradeJob, Regrades
from rolloutpool_common.capabilities.grading.wire import Grade, GraderChoice, GradeReport
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_worker.capabilities.grading import regrading
from rolloutpool_worker.capabilities.grading.base import GraderBusy
from rolloutpool_worker.capabilities.grading.host import GraderHost
from rolloutpool_worker.capabilities.grading.regrading import AT_ONCE

pytestmark = pytest.mark.usefixtures("log")


async def ended(store: Store, count: int, groups: Sequence[str | None] | None = None) -> list[str]:
    """A batch of completed rollouts."""
    batch = new_batch(count, groups=groups)
    await store.batches.submit(batch)
    uids = uids_of(batch)
    for uid in uids:
        claimed = await claim(store, uid)
        await store.rollouts.finish(claimed, result_of(claimed))
    return uids


def job(uids: Sequence[str], grader: str, options: Any = None, *, max_bytes: int = 10**6, **choice: Any) -> RegradeJob:
    return RegradeJob(
        batch=uids[0].rpartition("-")[0],
        grader=GraderChoice(name=grader, options=options, **choice),
        annotation="again",
        indexes=list(range(len(uids))),
        max_bytes=max_bytes,
    )


async def regraded(worker: InsideWorker, regrade_id: str) -> None:
    """Has a worker do a regrade, as Celery's task does."""
    await worker.services.capabilities["grading"].tasks[REGRADE_TASK](regrade_id)


async def done(store: Store, worker: InsideWorker, wanted: RegradeJob) -> Regrade:
    """Creates and does a regrade."""
    await Regrades(store).create("r1", wanted)
    await regraded(worker, "r1")
    return await state(store)


async def state(store: Store) -> Regrade:
    known = await Regrades(store).read("r1")
    assert known is not None
    return known[1]


async def test_grades_become_annotations_and_no_result_changes(inside: InsideWorker, store: Store, log: Path) -> None:
    uids = await ended(store, 2 * AT_ONCE + 1)
    before = [await store.rollouts.result(uid) for uid in uids]
    found = await done(store, inside, job(uids, "returns", "a grade"))
    assert (found.state, found.total, found.graded, found.left_out) == (RegradeState.COMPLETE, len(uids), len(uids), 0)
    assert found.failures == {}
    batch_id = uids[0].rpartition("-")[0]
    assert await Annotations(store).scalars(batch_id) == {
        "again": dict.fromkeys(range(len(uids)), 0.25),
        "again.style": dict.fromkeys(range(len(uids)), 0.75),
        "again.length": dict.fromkeys(range(len(uids)), -0.5),
    }
    assert [await store.rollouts.result(uid) for uid in uids] == before
    assert sorted(asked(log)) == sorted(f"returns {uid}" for uid in uids)
    # A second message about the same regrade finds nothing to do.
    await regraded(inside, "r1")
    await regraded(inside, "unknown")
    assert len(asked(log)) == len(uids)


async def test_rewards_per_token_become_streams(inside: InsideWorker, store: Store) -> None:
    uids = await ended(store, 1)
    await done(store, inside, job(uids, "returns", "rewards per token"))
    assert await Annotations(store).streams(uids[0].rpartition("-")[0], 0) == {"again": [[0.0, 1.0]]}


async def test_only_complete_conversations_are_graded_those_without_a_grade_too(
    inside: InsideWorker, store: Store
) -> None:
    batch = new_batch(3)
    await store.batches.submit(batch)
    uids = uids_of(batch)
    first, second = [await claim(store, uid) for uid in uids[:2]]
    failed = {"status": RolloutStatus.FAILED, "finish_reason": FinishReason.ERROR}
    await store.rollouts.finish(first, result_of(first, **failed))
    report = GradeReport(grader="returns", finish_reason=FinishReason.LENGTH)
    await store.rollouts.finish(second, without_grade(result_of(second, grade=report), GraderFault().failure()))
    found = await done(store, inside, job(uids, "returns", "a number"))
    assert (found.graded, found.left_out) == (1, 2)
    assert await Annotations(store).scalars(batch.batch_id) == {"again": {1: 0.5}}


async def test_failures_are_counted_and_are_no_reward(inside: InsideWorker, store: Store) -> None:
    uids = await ended(store, 3)
    found = await done(store, inside, job(uids, "returns", "nan"))
    assert (found.graded, found.failures) == (0, {"grade_invalid": 3})
    assert await Annotations(store).scalars(uids[0].rpartition("-")[0]) == {}


async def test_a_worker_without_the_grader_leaves_the_regrade_to_another(inside: InsideWorker, store: Store) -> None:
    uids = await ended(store, 3)
    found = await done(store, inside, job(uids, "nobody", retries=0))
    assert (found.state, found.graded, found.failures) == (RegradeState.RUNNING, 0, {})
    assert await Regrades(store).take("r1", "another")


async def test_annotations_that_take_too_much_are_refused(inside: InsideWorker, store: Store) -> None:
    uids = await ended(store, 2)
    found = await done(store, inside, job(uids, "returns", "a number", max_bytes=10))
    assert (found.state, found.graded, found.failures) == (RegradeState.COMPLETE, 0, {"annotations_full": 2})


async def test_a_group_is_graded_together(inside: InsideWorker, store: Store, log: Path) -> None:
    uids = await ended(store, 5, groups=["b", "a", None, "b", "a"])
    await done(store, inside, job(uids, "ranks"))
    assert await Annotations(store).scalars(uids[0].rpartition("-")[0]) == {
        "again": {1: 0.0, 4: 1.0, 0: 0.0, 3: 1.0, 2: 0.0},
        "again.members": {1: 2.0, 4: 2.0, 0: 2.0, 3: 2.0, 2: 1.0},
    }
    assert asked(log) == [f"ranks {uids[1]} {uids[4]}", f"ranks {uids[0]} {uids[3]}", f"ranks {uids[2]}"]


async def test_another_worker_goes_on_where_one_has_ended(
    fake_redis: str, tokenizers: TokenizerCache, store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = await ended(store, 2 * AT_ONCE)
    wanted = job(uids, "returns", "a number")
    async with inside_worker(fake_redis, tokenizers) as first, inside_worker(fake_redis, tokenizers) as second:
        note = Regrades.note

        async def dies(regrades: Regrades, found: Regrade, worker_id: str) -> bool:
            if worker_id != first.services.worker_id or found.done == AT_ONCE:
                return await note(regrades, found, worker_id)
            # Killed between the annotations of its second slice and the note of it.
            raise asyncio.CancelledError

        monkeypatch.setattr(Regrades, "note", dies)
        await Regrades(store).create("r1", wanted)
        assert await Regrades(store).ask("r1")
        assert not await Regrades(store).ask("r1")
        with pytest.raises(asyncio.CancelledError):
            await regraded(first, "r1")
        # As long as its lease holds, no other worker takes it.
        await regraded(second, "r1")
        assert len(asked(log)) == 2 * AT_ONCE
        assert (await state(store)).done == AT_ONCE
        await Regrades(store).leave("r1", second.services.worker_id)
        assert not await Regrades(store).ask("r1")
        await Regrades(store).leave("r1", first.services.worker_id)
        assert await Regrades(store).ask("r1")
        await regraded(second, "r1")
    found = await state(store)
    assert (found.state, found.graded) == (RegradeState.COMPLETE, 2 * AT_ONCE)
    assert len(asked(log)) == 3 * AT_ONCE
    scalars = await Annotations(store).scalars(uids[0].rpartition("-")[0])
    assert scalars == {"again": dict.fromkeys(range(len(uids)), 0.5)}


async def test_who_was_taken_for_dead_notes_nothing(inside: InsideWorker, store: Store, log: Path) -> None:
    uids = await ended(store, 2 * AT_ONCE)
    regrades, wanted = Regrades(store), job(uids, "returns", "a number")
    await regrades.create("r1", wanted)
    assert await regrades.take("r1", "another")
    found = await state(store)
    found.graded = AT_ONCE
    assert not await regrades.note(found, inside.services.worker_id)
    assert (await state(store)).done == 0
    # A note that arrives twice counts once.
    assert await regrades.note(found, "another")
    assert await regrades.note(found, "another")
    assert (await state(store)).done == AT_ONCE


async def test_a_grader_that_is_busy_is_asked_again_and_that_is_no_try(
    inside: InsideWorker, store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = await ended(store, 1)
    ask, calls = GraderHost.ask, 0

    async def busy_at_first(*args: Any, **kwargs: Any) -> list[Grade]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise GraderBusy
        return await ask(*args, **kwargs)

    monkeypatch.setattr(GraderHost, "ask", busy_at_first)
    monkeypatch.setattr(regrading, "BUSY_SECONDS", 0.01)
    found = await done(store, inside, job(uids, "returns", "a number", retries=0))
    assert (found.state, found.graded, calls) == (RegradeState.COMPLETE, 1, 2)


async def test_a_worker_that_shuts_down_leaves_the_rest(inside: InsideWorker, store: Store) -> None:
    uids = await ended(store, 2)
    inside.services.drain.begin()
    found = await done(store, inside, job(uids, "returns", "a number"))
    assert (found.state, found.graded) == (RegradeState.RUNNING, 0)
    assert await Regrades(store).ask("r1")


async def test_a_grader_that_fails_while_its_worker_shuts_down_is_asked_again_by_another(
    inside: InsideWorker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = await ended(store, 1)

    async def fails(*_: object, **__: object) -> None:
        inside.services.drain.begin()
        raise GraderFault

    with monkeypatch.context() as patched:
        patched.setattr(GraderHost, "ask", fails)
        found = await done(store, inside, job(uids, "returns", "a number"))
    assert (found.state, found.done) == (RegradeState.RUNNING, 0)
    assert await Regrades(store).ask("r1")
