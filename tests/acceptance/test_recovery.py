"""Workers as `rolloutpool worker --processes 2` runs them: one is killed, and its rollouts go on almost at once."""

import os
import signal
import time

from tests.support.waiting import eventually
from tests.support.worker_process import started_worker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

SILENCE_SECONDS = 5.0
"""Longer than this took it by heartbeats alone. With the parent's report an idle machine takes a second."""


def test_the_rollouts_of_a_killed_worker_go_on_at_once(tokenizer: ChatTokenizer) -> None:
    """Nothing is declared about the trainer, and each rollout is in a call when its worker dies."""
    app = callback_app(ScriptedPolicy(tokenizer, latency=8.0, turns=1), tokenizer=tokenizer)
    ask = {"messages": [{"role": "user", "content": "Calculate 1 + 2"}]}
    with (
        LocalPool(workers=0, flower=False) as pool,
        started_worker(
            pool.redis_url,
            arguments=("--processes", "2"),
            ROLLOUTPOOL_SECRETS_FILE=str(pool.secrets_file),
        ),
        serve_callback(app, [0]) as trainer,
        pool.client() as client,
    ):
        eventually(lambda: sum(worker.alive for worker in client.workers()) == 2, seconds=60)
        batch = client.submit([ask] * 8, defaults={"tokenizer_name": TINY}, trainer=trainer.urls)
        assert batch.accepted is not None
        uids = batch.accepted.rollouts
        eventually(lambda: all(client.get_rollout(uid).worker for uid in uids), seconds=30)
        victim = client.workers()[0]
        taken = [uid for uid in uids if client.get_rollout(uid).worker == victim.worker_id]
        assert taken
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        eventually(
            lambda: all(client.get_rollout(uid).worker not in (None, victim.worker_id) for uid in taken), seconds=30
        )
        assert time.monotonic() - killed < SILENCE_SECONDS
        results = list(batch.results())
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert app.sampling_log.repeated() == {}
