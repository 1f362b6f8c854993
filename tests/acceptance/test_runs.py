"""Steering a run on real processes: a pause around a weight update, and a lease that nobody renews."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redis import Redis
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import CancelCause
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

DEFAULTS = {"tokenizer_name": TINY, "idempotent": True, "max_turns": 100}
QUESTION = [{"role": "user", "content": "Calculate (15 + 23) * 4"}]


class Weights:
    """A policy whose weights have a version."""

    def __init__(self, tokenizer: ChatTokenizer, **options: Any) -> None:
        self.version = 1
        self._policy = ScriptedPolicy(tokenizer, **options)

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        version = str(self.version)
        return replace(await self._policy(prompt_ids, params), policy_version=version)


def settled(app: CallbackApp) -> int:
    """Waits until what was in flight is sampled; returns how many turns were."""
    counts = [-1]
    while len(app.sampling_log) != counts[-1]:
        counts.append(len(app.sampling_log))
        time.sleep(0.6)
    return counts[-1]


@contextmanager
def served(pool: LocalPool, tokenizer: ChatTokenizer, weights: Weights) -> Iterator[tuple[CallbackApp, str]]:
    app = callback_app(weights, tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0]) as running:
        yield app, running.urls[0]


def test_a_run_is_paused_around_a_weight_update(
    pool: LocalPool, client: RolloutClient, tokenizer: ChatTokenizer
) -> None:
    weights, run = Weights(tokenizer, latency=0.05, turns=6), f"update-{uuid.uuid4().hex[:8]}"
    with served(pool, tokenizer, weights) as (app, url):
        client.announce(run, 1)
        rollouts = [{"messages": QUESTION} for _ in range(16)]
        batch = client.submit(rollouts, defaults=DEFAULTS, trainer=url, run=run, max_staleness=1)
        eventually(lambda: len(app.sampling_log) >= 16)
        assert client.pause(run).paused_at is not None
        # Calls in flight go on, and none is sent after them.
        before = settled(app)
        assert before < 16 * 6
        assert [wait.waits_for for wait in batch.status().waiting] == ["paused"]
        time.sleep(0.5)
        assert len(app.sampling_log) == before
        weights.version = 2
        client.announce(run, 2)
        assert client.resume(run).paused_at is None
        results = list(batch.results())
        assert len(app.sampling_log) == 16 * 6
        assert not app.sampling_log.repeated()
    assert {(result.status, result.alignment) for result in results} == {("completed", "exact")}
    # Every turn before the pause is of the old weights, and every later one of the new.
    turns = [turn.policy_version for result in results for turn in result.turns]
    assert (turns.count("1"), turns.count("2")) == (before, 16 * 6 - before)
    for result in results:
        assert [turn.policy_version for turn in result.turns] == sorted(
            turn.policy_version or "" for turn in result.turns
        )
        assert [(sample.version_min, sample.version_max) for sample in result.samples] == [(1, 2)]
        assert (result.staleness, result.stale) == (1, None)


def test_a_batch_that_nobody_reads_any_more_is_cancelled(
    pool: LocalPool, client: RolloutClient, tokenizer: ChatTokenizer
) -> None:
    # Far more turns than the test has time for.
    with served(pool, tokenizer, Weights(tokenizer, latency=0.2, turns=100)) as (app, url), raw_redis(pool) as raw:
        batch = client.submit([{"messages": QUESTION}] * 4, defaults=DEFAULTS, trainer=url, lease_seconds=10)

        def pass_seconds(seconds: int) -> None:
            # The shortest lease is longer than a test may take, so the clock by which leases end is put on.
            raw.hincrby("rp:served", "clock_ms", seconds * 1000)

        for _ in range(2):
            pass_seconds(8)
            assert batch.status().cancel_cause is None
        eventually(lambda: len(app.sampling_log) >= 4)
        pass_seconds(10)
        # Not by a read of the batch, because that would renew the lease.
        eventually(lambda: raw.hexists(f"rp:batch:{batch.batch_id}", "finished_ms"), seconds=20)
        status = batch.status()
        assert (status.cancelled, status.cancel_cause) == (True, CancelCause.LEASE)
        assert status.counts[RolloutStatus.CANCELLED] == 4
        # The workers have let go of it: what was in flight is answered, and nothing follows.
        asked = settled(app)
        assert asked < 4 * 100
        time.sleep(0.5)
        assert len(app.sampling_log) == asked


@contextmanager
def raw_redis(pool: LocalPool) -> Iterator[Redis]:
    with Redis.from_url(pool.redis_url) as raw:
        yield raw
