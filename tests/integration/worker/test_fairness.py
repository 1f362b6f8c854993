"""Who gets the workers: runs by weight, priority classes beside each other; told by the order of calls at the trainer.

A real worker takes real tickets here. What counts is how many of the others were started in between, so that a slow
machine changes nothing.
"""

from itertools import takewhile
from typing import Any

from tests.support.batches import new_batch, uids_of
from tests.support.pool import Pool, opened_pool
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import say
from tests.support.waiting import until_true
from tests.support.worker_process import started_worker

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import NewBatch
from rolloutpool_common.store.outbox import PER_WORKER

SLOTS = 8
TRAINING, EVALUATION = 10_000, 10


async def submit(pool: Pool, trainer: ScriptedTrainer, count: int, run: str, **more: Any) -> NewBatch:
    batch = new_batch(count, shared={"server_url": trainer.url}, run=run, **more)
    await pool.store.batches.submit(batch)
    return batch


def started(trainer: ScriptedTrainer) -> list[str]:
    """The batch of each rollout, in the order of starting."""
    return [exchange.uid.partition("-")[0] for exchange in trainer.exchanges]


async def called(trainer: ScriptedTrainer, count: int) -> None:
    """Returns when so many rollouts have been started."""
    await until_true(lambda: len(trainer.exchanges) >= count, 150)


async def all_started(trainer: ScriptedTrainer, batch: NewBatch) -> None:
    await until_true(lambda: started(trainer).count(batch.batch_id) == len(batch.rollouts), 150)


async def test_ten_rollouts_are_not_held_up_by_ten_thousand(redis_url: str, tokenizer: ChatTokenizer) -> None:
    """An evaluation comes while a training batch has every slot; it starts with the next ones that are free."""
    async with opened_pool(redis_url) as pool, scripted_trainer(tokenizer, say("8")) as trainer:
        training = await submit(pool, trainer, TRAINING, "training")
        await pool.publisher.pump()
        with started_worker(redis_url, ROLLOUTPOOL_WORKER_SLOTS=str(SLOTS)) as worker:
            await worker.announced(pool.store)
            await called(trainer, 50)
            urgent = await submit(pool, trainer, EVALUATION, "evaluation", priority=Priority.HIGH)
            await pool.publisher.pump()
            overtaken = len(trainer.exchanges)
            await all_started(trainer, urgent)
            order = started(trainer)[overtaken:]
            assert held_up(order, urgent) <= 4 * EVALUATION + 2 * SLOTS, order
            results = [await pool.result(uid) for uid in uids_of(urgent)]
            # In the class of the training itself: behind what is in the broker already, and nothing else.
            equal = await submit(pool, trainer, EVALUATION, "evaluation")
            await pool.publisher.pump()
            overtaken = len(trainer.exchanges)
            await all_started(trainer, equal)
            order = started(trainer)[overtaken:]
            assert held_up(order, equal) <= 2 * PER_WORKER + 4 * EVALUATION + 2 * SLOTS, order
            results += [await pool.result(uid) for uid in uids_of(equal)]
            assert {result.status.value for result in results} == {"completed"}
            # The training is far from its end, and was not stopped.
            behind = started(trainer).count(training.batch_id)
            assert 50 < behind < TRAINING / 2


def held_up(order: list[str], batch: NewBatch) -> int:
    """How many others were started before its last rollout was."""
    last = len(order) - len(list(takewhile(lambda other: other != batch.batch_id, reversed(order))))
    return last - order[:last].count(batch.batch_id)
