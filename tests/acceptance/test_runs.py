"""Steering a run on real processes: a pause around a weight update."""

import time
import uuid
from dataclasses import replace

from tests.support.waiting import eventually

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

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.version = 1
        self._policy = ScriptedPolicy(tokenizer, latency=0.05, turns=6)

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


def test_a_run_is_paused_around_a_weight_update(
    pool: LocalPool, client: RolloutClient, tokenizer: ChatTokenizer
) -> None:
    weights, run = Weights(tokenizer), f"update-{uuid.uuid4().hex[:8]}"
    app = callback_app(weights, tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0]) as served:
        client.announce(run, 1)
        rollouts = [{"messages": QUESTION} for _ in range(16)]
        batch = client.submit(rollouts, defaults=DEFAULTS, trainer=served.url, run=run, max_staleness=1)
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
