"""Ends of processes in the middle of training, by SIGKILL: nothing is told, nothing is tidied up.

A quarter into the run a worker is killed, at the half Redis, at three quarters both. Each time rollouts of the step are
under way. The pool starts the processes again, and the rollouts go on from their journals.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from rolloutpool_trainer import LocalPool

AFTER_SECONDS = 0.3
"""From the moment at which a step's rollouts are asked for."""


class Kills:
    """Knows when to kill what."""

    def __init__(self, pool: LocalPool, steps: int) -> None:
        """Plans the ends for a run of so many steps."""
        self.done: list[str] = []
        """What was killed, in words."""
        self._pool = pool
        self._plan = {steps // 4: ("worker",), steps // 2: ("redis",), 3 * steps // 4: ("worker", "redis")}

    @property
    def planned(self) -> int:
        """How many kills there are in all."""
        return sum(map(len, self._plan.values()))

    @contextmanager
    def during(self, step: int) -> Iterator[None]:
        """Kills what the plan has for this step, while the block runs."""
        timers = [threading.Timer(AFTER_SECONDS, self._kill, (what, step)) for what in self._plan.get(step, ())]
        for timer in timers:
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.join()

    def _kill(self, what: str, step: int) -> None:
        if what == "worker":
            self._pool.kill_worker(len(self.done) % 2)
        else:
            # It may still be away since it was killed before.
            again = Retry(ConstantBackoff(0.2), retries=150)
            with redis.Redis.from_url(self._pool.redis_url, retry=again) as server:
                pid = int(server.info("server")["process_id"])
            os.kill(pid, signal.SIGKILL)
        self.done.append(f"{what} at step {step}")
