"""For TRL: a `rollout_func` for `GRPOTrainer`, and a rollout worker for `AsyncGRPOTrainer` (read from TRL 1.16.0).

`GRPOTrainer` calls `rollout_func(prompts, trainer)` with prompts that are repeated `num_generations` times already, and
waits. It takes one row for each entry, so a rollout that forked, or that failed after all retries, raises
`ExportRefused`.

`AsyncGRPOTrainer` reads `RolloutSample` from a queue while the pool goes on; it takes every sample of a forked
rollout, and expects the advantage from the worker. `PoolRolloutWorker` fills that queue from a `RolloutStream`.

The first has no place for policy versions and turns; the second none for turns, and of a sample's versions it takes the
oldest.
"""

import queue
import threading
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any, Literal

from rolloutpool_rl.advantages import group_advantages
from rolloutpool_rl.export import trl_async_samples, trl_columns
from rolloutpool_trainer.adapters.driver import PoolDriver, conversation
from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.client.sync_batch import TrainableGroup
from rolloutpool_trainer.client.sync_stream import RolloutStream
from rolloutpool_trainer.errors import TrainerError


def rollout_func(driver: PoolDriver) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Makes a `rollout_func` for `GRPOTrainer`.

    Temperature, `top_p` and the length of a turn are the trainer's. Besides TRL's columns the reward functions get
    `rollout_uid` and `transcript`, the messages after the prompt, tool results included.

    Args:
        driver: Its `trainer` is where the policy is served: the model in training, in a thread of this process or
            beside.
    """

    def run(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        arguments = trainer.args
        sampling = {
            "temperature": arguments.temperature,
            "top_p": arguments.top_p,
            "max_tokens": arguments.max_completion_length,
        }
        # Entries of one prompt follow each other, so each run of equal ones is a group.
        items = [
            {"messages": conversation(prompt), "group": str(number), "sampling_params": sampling}
            for number, (prompt, entries) in enumerate(groupby(prompts))
            for _ in entries
        ]
        results = driver.run_blocking(items)
        transcripts = [
            [message.model_dump(exclude_none=True) for message in result.messages[len(item["messages"]) :]]
            for item, result in zip(items, results, strict=True)
        ]
        return {**trl_columns(results), "transcript": transcripts}

    return run


class WorkerStopped(TrainerError):
    """The rollout worker ended, or has produced nothing for too long."""


class PoolRolloutWorker:
    """TRL's `RolloutWorkerProtocol` over a stream of groups.

    The stream's prompts must not end before the training does. A group whose rewards are all equal has advantages of
    0; it is delivered like any other.
    """

    def __init__(
        self,
        stream: RolloutStream,
        reward: Callable[[FinishedRollout], float],
        *,
        std: Literal["group", "batch"] | None = "group",
        ahead: int = 1024,
        sample_type: Callable[..., Any] | None = None,
    ) -> None:
        """Makes a worker; `start` starts it.

        Args:
            stream: Where groups come from.
            reward: Of a rollout.
            std: As for `group_advantages`.
            ahead: Samples that may wait for the trainer; more wait in the pool.
            sample_type: What is put into the queue; None takes TRL's `RolloutSample`.
        """
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(ahead)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._stream, self._reward, self._std, self._sample_type = stream, reward, std, sample_type
        self._thread = threading.Thread(target=self._run, name="pool-rollouts", daemon=True)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._produced_at = time.monotonic()
        self._groups = 0

    def start(self) -> None:
        """Begins to submit rollouts and to fill the queue."""
        self._produced_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Ends the worker after the group that it is reading; what is in flight stays in the pool."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def update_model_version(self, model_version: int) -> None:
        """Takes the version of the weights in training, by which the stream knows what is stale."""
        self._stream.version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises `WorkerStopped` if the worker failed, ended, or has produced nothing for so many seconds."""
        if self._failure is not None:
            raise WorkerStopped("the rollout worker failed") from self._failure
        if not self._thread.is_alive():
            raise WorkerStopped("the rollout worker has ended: its prompts are used up, or it was not started")
        idle = time.monotonic() - self._produced_at
        # A full queue is the trainer's pace, not the worker's.
        if idle > stale_after_s and not self.rollout_buffer.full():
            raise WorkerStopped(f"the rollout worker has produced nothing for {idle:.0f} s")

    def _run(self) -> None:
        try:
            sample_type = self._sample_type or _rollout_sample()
            for group in self._stream:
                for sample in self._samples(group):
                    if not self._put(sample_type(**sample)):
                        return
                self._groups += 1
                self._produced_at = time.monotonic()
        # A thread has nobody who catches; `check_health` hands it to the trainer.
        except BaseException as failure:
            self._failure = failure

    def _samples(self, group: TrainableGroup) -> list[dict[str, Any]]:
        rewards = [self._reward(rollout) for rollout in group.rollouts]
        gains = group_advantages(rewards, [0] * len(rewards), std=self._std)
        self.metrics_queue.put({"reward": sum(rewards) / len(rewards), "rollouts": float(len(rewards))})
        return [
            sample
            for rollout, gain, reward in zip(group.rollouts, gains, rewards, strict=True)
            for sample in trl_async_samples(rollout, float(gain), group_id=self._groups, metrics={"reward": reward})
        ]

    def _put(self, sample: Any) -> bool:
        while not self._stopping.is_set():
            try:
                self.rollout_buffer.put(sample, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False


def _rollout_sample() -> Callable[..., Any]:
    with needing("trl==1.16.0"):
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    return RolloutSample  # type: ignore[no-any-return]
