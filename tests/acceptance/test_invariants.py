"""Eight invariants that a rollout service must keep, each against real processes (after NVIDIA-NeMo/Gym#2750).

The trainer here does to each call what the rollout's name says: `overloaded` gets 503 for ever, `breaks` loses the
reply to its first call, `hangs` waits until it is let go, all others are answered well.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer_in_thread
from tests.support.trainer_script import Scripts, lost, say, status, wait
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.export import trainable
from rolloutpool_rl.reductions import masked_whiten, sum_of_sample_mean, token_mean
from rolloutpool_trainer import IdempotencyConflict, LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ATTEMPTS, RETRIES, DRAIN_SECONDS = 2, 1, 2.0
ENV = {
    "ROLLOUTPOOL_TRAINER_ATTEMPTS": str(ATTEMPTS),
    "ROLLOUTPOOL_INFRA_RETRIES": str(RETRIES),
    "ROLLOUTPOOL_DRAIN_SECONDS": str(DRAIN_SECONDS),
}
BOUND_SECONDS = 30.0
"""Five on a calm machine; whoever only lets go when a client or an operator comes never would."""
ASK = [{"role": "user", "content": "Calculate (15 + 23) * 4"}]


class Trainer:
    """A trainer that calculates, and does to some rollouts what their name says."""

    def __init__(self, scripted: ScriptedTrainer, let_go: threading.Event) -> None:
        self.scripted = scripted
        self.url, self.app = scripted.url, scripted.app
        self.let_go = let_go
        """Until it is set, `hangs` hangs."""

    def keys_of(self, name: str) -> list[str]:
        """What a rollout called with, in order."""
        return [
            exchange.headers["idempotency-key"]
            for exchange in list(self.scripted.exchanges)
            if exchange.document["rollout_id"] == name
        ]


@contextmanager
def serving(tokenizer: ChatTokenizer, pool: LocalPool) -> Iterator[Trainer]:
    """The trainer, listening."""
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url)
    let_go = threading.Event()
    scripts: Scripts = {
        "overloaded": [status(503, retry_after="0")],
        "breaks": [lost(say()), say()],
        "hangs": [wait(let_go), say()],
    }
    with scripted_trainer_in_thread(tokenizer, say(), scripts=scripts, app=app) as scripted:
        try:
            yield Trainer(scripted, let_go)
        finally:
            let_go.set()


@pytest.fixture(scope="module")
def quick(tokenizer: ChatTokenizer) -> Iterator[LocalPool]:
    """A pool that gives up quickly."""
    with LocalPool(workers=2, flower=False, tokenizers=[TINY], env=ENV) as running:
        yield running


@pytest.fixture
def trainer(quick: LocalPool, tokenizer: ChatTokenizer) -> Iterator[Trainer]:
    """The endpoint for that pool."""
    with serving(tokenizer, quick) as endpoint:
        yield endpoint


def submit(pool: LocalPool, trainer: Trainer, *names: str, **options: Any) -> tuple[RolloutClient, Any]:
    """A batch of these rollouts."""
    client = pool.client()
    defaults = {"tokenizer_name": TINY, **options}
    rollouts = [{"rollout_id": name, "messages": ASK} for name in names]
    return client, client.submit(rollouts, defaults=defaults, trainer=trainer.url)


def test_1_every_retry_loop_ends(quick: LocalPool, trainer: Trainer) -> None:
    client, batch = submit(quick, trainer, "overloaded", idempotent=True)
    with client:
        (result,) = batch.results()
    assert result.status is RolloutStatus.FAILED
    assert result.failure.category is Category.TRAINER_SERVER_ERROR
    assert trainer.keys_of("overloaded") == [f"{result.uid}/1"] * ATTEMPTS * (1 + RETRIES)


@pytest.mark.parametrize("idempotent", [False, True])
def test_2_what_may_have_arrived_is_sent_again_only_where_that_is_promised_to_be_safe(
    quick: LocalPool, trainer: Trainer, idempotent: bool
) -> None:
    client, batch = submit(quick, trainer, "breaks", idempotent=idempotent)
    with client:
        (result,) = batch.results()
    first = f"{result.uid}/1"
    if idempotent:
        assert result.status is RolloutStatus.COMPLETED
        assert trainer.keys_of("breaks")[:2] == [first, first]
        assert trainer.app.sampling_log.repeated() == {}
    else:
        assert result.status is RolloutStatus.FAILED
        assert trainer.keys_of("breaks") == [first]


def test_3_finished_failed_and_unresolved_are_three_states(quick: LocalPool, trainer: Trainer) -> None:
    client, batch = submit(quick, trainer, "calm", "overloaded", "hangs")
    with client:
        eventually(lambda: batch.status().progress == 2 / 3, seconds=30)
        views = {name: client.get_rollout(name) for name in ("calm", "overloaded", "hangs")}
        assert {name: view.status for name, view in views.items()} == {
            "calm": RolloutStatus.COMPLETED,
            "overloaded": RolloutStatus.FAILED,
            "hangs": RolloutStatus.RUNNING,
        }
        calm, overloaded = views["calm"].result, views["overloaded"].result
        assert calm is not None
        assert overloaded is not None
        assert views["hangs"].result is None
        assert (bool(calm["samples"]), calm["failure"]) == (True, None)
        assert (overloaded["samples"], overloaded["failure"]["kind"]) == ([], FailureKind.INFRA)
        assert {status: n for status, n in batch.status().counts.items() if n} == {
            RolloutStatus.COMPLETED: 1,
            RolloutStatus.FAILED: 1,
            RolloutStatus.RUNNING: 1,
        }
        trainer.let_go.set()
        assert len(list(batch.results())) == 3


def test_4_an_infrastructure_failure_is_never_a_sample_with_reward_0(quick: LocalPool, trainer: Trainer) -> None:
    client, batch = submit(quick, trainer, "overloaded", "breaks")
    with client:
        results: list[RolloutResult] = list(batch.results())
    assert [result.failure and result.failure.kind for result in results] == [FailureKind.INFRA] * 2
    for result in results:
        assert not any(any(sample.response_mask) for sample in result.samples)
        with pytest.raises(ExportRefused):
            list(trainable(result, 0.0))


def test_5_what_is_masked_takes_no_part_in_a_statistic(quick: LocalPool, trainer: Trainer) -> None:
    client, batch = submit(quick, trainer, "calm")
    with client:
        (result,) = batch.results()
    (sample,) = result.samples
    mask = np.array(sample.response_mask)
    assert set(mask) == {0, 1}
    values = np.linspace(0.0, 1.0, len(mask))
    poisoned = np.where(mask == 1, values, np.nan)
    assert token_mean(poisoned, mask) == token_mean(values, mask)
    assert sum_of_sample_mean(poisoned, [len(mask)], [mask]) == sum_of_sample_mean(values, [len(mask)], [mask])
    assert np.array_equal(masked_whiten(poisoned, mask)[mask == 1], masked_whiten(values, mask)[mask == 1])


def test_6_resuming_is_of_the_same_run_and_keeps_its_attempts(quick: LocalPool, tokenizer: ChatTokenizer) -> None:
    policy, let_go = ScriptedPolicy(tokenizer, turns=5), threading.Event()

    async def generate(prompt_ids: list[int], params: GenerateParams) -> Generation:
        if params.turn == 3:
            await asyncio.to_thread(let_go.wait)
        return await policy(prompt_ids, params)

    app = callback_app(generate, tokenizer=tokenizer, tools=quick.url)
    names = [f"resumed-{n}" for n in range(4)]
    asks = [{"rollout_id": name, "messages": ASK} for name in names]
    defaults = {"tokenizer_name": TINY, "idempotent": True}
    with serve_callback(app, [0]) as served, quick.client() as client:
        batch = client.submit(asks, defaults=defaults, trainer=served.url, idempotency_key="run")
        # The same key is the same run, and never another one.
        again = client.submit(asks, defaults=defaults, trainer=served.url, idempotency_key="run")
        assert again.batch_id == batch.batch_id
        with pytest.raises(IdempotencyConflict):
            client.submit(asks[1:], defaults=defaults, trainer=served.url, idempotency_key="run")
        try:
            eventually(lambda: all(_turns(app, name) == 2 for name in names), seconds=60)
            holders = {name: client.get_rollout(name).worker for name in names}
            killed = holders[names[0]]
            kill(quick, client, killed)
            eventually(lambda: client.get_rollout(names[0]).worker not in (killed, None), seconds=60)
        finally:
            let_go.set()
        results = list(batch.results())
    assert app.sampling_log.repeated() == {}
    for result in results:
        attempt = 2 if holders[result.rollout_id] == killed else 1
        assert (result.status, result.attempt) == (RolloutStatus.COMPLETED, attempt)
        # The call of turn 3 was in flight: the first attempt's sampling of it is the second's answer.
        assert [turn.attempt for turn in app.sampling_log.of(result.rollout_id)] == [1, 1, 1, attempt, attempt]
        session = app.get_session(result.rollout_id, result.uid)
        assert [sample.response_ids for sample in result.samples] == [list(s.response_ids) for s in session.samples]


def kill(pool: LocalPool, client: RolloutClient, worker_id: str | None) -> None:
    """Ends this worker by kill -9."""
    (pid,) = [worker["pid"] for worker in client.workers() if worker["worker_id"] == worker_id]
    pool.kill_worker([worker.pid for worker in pool.workers].index(pid))


def _turns(app: CallbackApp, name: str) -> int:
    session = app.sessions.named(name)
    return 0 if session is None else session.turns


@pytest.mark.slow
def test_7_what_a_worker_held_is_free_within_a_bound_even_if_it_never_lets_go(
    quick: LocalPool, trainer: Trainer
) -> None:
    client, batch = submit(quick, trainer, "hangs", idempotent=True)
    with client:
        eventually(lambda: client.get_rollout("hangs").turns == 0 and trainer.keys_of("hangs"), seconds=30)
        holder = client.get_rollout("hangs").worker
        kill(quick, client, holder)
        killed = time.monotonic()
        eventually(lambda: client.get_rollout("hangs").worker not in (holder, None), seconds=60)
        assert time.monotonic() - killed < BOUND_SECONDS
        assert holder not in {worker["worker_id"] for worker in client.workers()}
        trainer.let_go.set()
        (result,) = batch.results()
    assert (result.status, result.attempt) == (RolloutStatus.COMPLETED, 2)


def test_8_shutdown_frees_everything_within_a_bound(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    with (
        LocalPool(workers=1, flower=False, state=tmp_path, tokenizers=[TINY], env=ENV) as pool,
        serving(tokenizer, pool) as trainer,
    ):
        client, batch = submit(pool, trainer, "hangs", idempotent=True)
        eventually(lambda: trainer.keys_of("hangs"), seconds=30)
        client.close()
        pids = [worker.pid for worker in pool.workers]
        begun = time.monotonic()
        pool.stop()
        took = time.monotonic() - begun
    assert took < DRAIN_SECONDS + BOUND_SECONDS
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    # Freed, not lost: whoever starts next on this state finds the rollout in its queue.
    with LocalPool(workers=0, flower=False, state=tmp_path, env=ENV) as pool, pool.client() as client:
        assert client.batch(batch.batch_id).status().counts[RolloutStatus.QUEUED] == 1
