"""Redis dies in the middle of a batch: what it had promised it still knows, and everybody goes on where they were."""

import os
import signal

import redis
from tests.acceptance.test_pool import DEFAULTS, assert_exact, items
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ROLLOUTS = 40


def test_a_batch_outlives_kill_9_of_redis(tokenizer: ChatTokenizer) -> None:
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.2, turns=4), tokenizer=tokenizer)
    env = {"ROLLOUTPOOL_WORKER_SLOTS": "8"}
    with (
        LocalPool(workers=2, flower=False, tokenizers=[TINY], env=env) as pool,
        pool.client() as client,
        serve_callback(app, [0]) as served,
        redis.Redis.from_url(pool.redis_url) as raw,
    ):
        batch = client.submit(items(ROLLOUTS), defaults=DEFAULTS, trainer=served.url)
        reading = batch.results()
        results = [next(reading)]
        sampled = len(app.sampling_log)
        assert batch.status().counts[RolloutStatus.RUNNING]
        os.kill(int(raw.info("server")["process_id"]), signal.SIGKILL)
        # Calls that were in flight come back meanwhile; what they brought must not be lost.
        eventually(lambda: len(app.sampling_log) > sampled)
        results += reading
        assert len({result.uid for result in results}) == len(results) == ROLLOUTS
        assert_exact(app, results)
        assert app.sampling_log.repeated() == {}
        assert batch.status().counts[RolloutStatus.COMPLETED] == ROLLOUTS
