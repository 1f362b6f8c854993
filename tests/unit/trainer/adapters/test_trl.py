"""TRL's two calls. A real training run, and TRL's own types: tests/trainers."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.api_documents import failed, group_column, results_page, version_segment
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.trl import PoolRolloutWorker, WorkerStopped, rollout_func
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.client.sync_stream import RolloutStream

TRAINER = SimpleNamespace(args=SimpleNamespace(temperature=0.7, top_p=0.9, max_completion_length=64))
MESSAGES = [{"role": "user", "content": "What is 1 + 1?"}]
BATCH = "b" + "0" * 32


def test_rows_come_back_in_the_order_of_the_prompts(
    pool: StubPool, driver: PoolDriver, ends: Callable[..., None]
) -> None:
    ends([{}, version_segment("1", 3), {}, {}])
    columns = rollout_func(driver)([MESSAGES, MESSAGES, "plain", "plain"], TRAINER)
    assert [len(ids) for ids in columns["completion_ids"]] == [2, 3, 2, 2]
    assert columns["env_mask"][1] == [1, 1, 1]
    assert columns["rollout_uid"] == [f"{BATCH}-{i}" for i in range(4)]
    assert columns["transcript"][0] == [{"role": "assistant", "content": "2"}]
    rollouts = pool.requests[0].body["rollouts"]
    assert [item["group"] for item in rollouts] == ["0", "0", "1", "1"]
    assert rollouts[2]["messages"] == [{"role": "user", "content": "plain"}]
    assert rollouts[0]["sampling_params"] == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 64}


def test_a_rollout_that_failed_for_good_has_no_legal_row(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}, failed()], [failed()])
    with pytest.raises(ExportRefused, match="not the policy's"):
        rollout_func(driver)([MESSAGES, MESSAGES], TRAINER)


@pytest.fixture
def stream(pool: StubPool) -> Iterator[RolloutStream]:
    """Two groups of two, the second of an old version."""
    pool.on("POST", "/v1/batches", Answer(202, {"batch_id": BATCH, "total": 4, "rollouts": list("abcd")}))
    pool.on("GET", f"/v1/batches/{BATCH}/rollouts", Answer(body=group_column(BATCH, "a", "a", "b", "b")))
    ends = [
        {"group": group} | version_segment(version)
        for group, version in (("a", "5"), ("a", "6"), ("b", "2"), ("b", "2"))
    ]
    pool.on("GET", f"/v1/batches/{BATCH}/results", Answer(body=results_page(BATCH, dict(enumerate(ends)))))
    with RolloutClient(pool.url, timeout=5.0) as client:
        yield RolloutStream(client, [[{"messages": MESSAGES}]], max_staleness=1)


def worker_of(stream: RolloutStream, **more: Any) -> PoolRolloutWorker:
    return PoolRolloutWorker(stream, lambda rollout: float(rollout.index), sample_type=dict, **more)


def test_the_worker_fills_the_queue_with_samples_and_advantages(stream: RolloutStream) -> None:
    worker = worker_of(stream, std=None)
    worker.update_model_version(6)
    worker.start()
    samples = [worker.rollout_buffer.get(timeout=10) for _ in range(2)]
    assert [sample["advantage"] for sample in samples] == [-0.5, 0.5]
    assert [sample["model_version"] for sample in samples] == [5, 6]
    assert [sample["group_id"] for sample in samples] == [0, 0]
    assert samples[1]["metrics"] == {"reward": 1.0}
    assert worker.metrics_queue.get(timeout=10) == {"reward": 0.5, "rollouts": 2.0}
    worker.stop()
    # The second group was too old, and then the prompts were used up.
    assert worker.rollout_buffer.empty()
    with pytest.raises(WorkerStopped, match="has ended"):
        worker.check_health(60.0)


def test_a_full_queue_is_no_fault_and_stop_ends_the_wait(stream: RolloutStream) -> None:
    worker = worker_of(stream, ahead=1)
    worker.start()
    while not worker.rollout_buffer.full():
        time.sleep(0.001)
    worker.check_health(0.0)
    started = time.monotonic()
    worker.stop()
    assert time.monotonic() - started < 4.0
    assert not worker._thread.is_alive()


def test_a_reward_that_fails_is_the_trainers_to_know(stream: RolloutStream) -> None:
    def broken(rollout: Any) -> float:
        raise ZeroDivisionError("no judge")

    worker = PoolRolloutWorker(stream, broken, sample_type=dict)
    worker.start()
    worker._thread.join(10)
    with pytest.raises(WorkerStopped, match="failed") as caught:
        worker.check_health(60.0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_worker_that_is_silent_for_too_long_is_a_fault(stream: RolloutStream) -> None:
    worker = worker_of(stream)
    with pytest.raises(WorkerStopped, match="was not started"):
        worker.check_health(60.0)
    worker._thread = SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]
    worker.check_health(60.0)
    with pytest.raises(WorkerStopped, match="produced nothing"):
        worker.check_health(-1.0)
