"""`LocalPool` as trainers use it: real processes, real callbacks, crashes included."""

import asyncio
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_trainer import (
    AsyncRolloutClient,
    LocalPool,
    MissingExtra,
    PoolUnavailable,
    PortTaken,
    RolloutClient,
    StateInUse,
)
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.checks import check_masks
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import ServedCallback, serve_callback
from rolloutpool_trainer.errors import ChildFailed
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

TOKENIZER = "rolloutpool/tiny"


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(TOKENIZER)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=2, flower=False, tokenizers=[TOKENIZER]) as started:
        yield started


class Trainer:
    """A scripted trainer, served."""

    def __init__(self, app: CallbackApp, served: ServedCallback) -> None:
        self.app = app
        self.served = served

    def items(self, n: int) -> list[dict[str, object]]:
        """So many rollouts."""
        return [{"messages": [{"role": "user", "content": question}]} for question in calculator_prompts(n)]


@pytest.fixture
def trainer(pool: LocalPool, tokenizer: ChatTokenizer) -> Iterator[Trainer]:
    policy = ScriptedPolicy(tokenizer, latency=0.2)
    app = callback_app(policy, tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0, 0]) as served:
        yield Trainer(app, served)


@pytest.fixture
def client(pool: LocalPool) -> Iterator[RolloutClient]:
    with pool.client() as made:
        yield made


def test_a_batch_by_poll_has_the_trainers_own_masks(pool: LocalPool, client: RolloutClient, trainer: Trainer) -> None:
    batch = client.submit(
        trainer.items(24), defaults={"tokenizer_name": TOKENIZER}, trainer=trainer.served.urls, labels={"run": "a"}
    )
    results = list(batch.results())
    assert sorted(result.index for result in results) == list(range(24))
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert {result.worker for result in results} <= {worker["worker_id"] for worker in client.workers()}
    checks = [check_masks(result, trainer.app.get_session(result.rollout_id).samples) for result in results]
    assert sum(differing for _, differing in checks) == 0
    assert all(compared for compared, _ in checks)
    assert batch.wait(timeout=5).progress == 1.0
    later = list(client.batch(batch.batch_id).results(cursor=results[10].cursor))
    assert [result.uid for result in later] == [result.uid for result in results[11:]]


def test_a_killed_worker_loses_nothing(pool: LocalPool, client: RolloutClient, trainer: Trainer) -> None:
    batch = client.submit(
        trainer.items(16),
        defaults={"tokenizer_name": TOKENIZER, "idempotent": True},
        trainer=trainer.served.urls,
    )
    reading = batch.results()
    results = [next(reading)]
    victim = pool.workers[0]
    pool.kill_worker(0)
    results.extend(reading)
    assert sorted(result.index for result in results) == list(range(16))
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert trainer.app.sampling_log.repeated() == {}
    assert victim.ended is False


def test_a_worker_that_is_added_in_the_middle_takes_its_share(tokenizer: ChatTokenizer) -> None:
    policy = ScriptedPolicy(tokenizer, latency=0.05)
    grown = threading.Event()

    async def generate(prompt_ids: list[int], params: GenerateParams) -> Generation:
        """The first worker is busy until the second one is there."""
        assert await asyncio.to_thread(grown.wait, 60)
        return await policy(prompt_ids, params)

    small = LocalPool(workers=1, flower=False, tokenizers=[TOKENIZER], env={"ROLLOUTPOOL_WORKER_SLOTS": "2"})
    with serve_callback(callback_app(generate, tokenizer=tokenizer), [0]) as served, small, small.client() as client:
        items = [{"messages": [{"role": "user", "content": question}]} for question in calculator_prompts(32)]
        batch = client.submit(items, defaults={"tokenizer_name": TOKENIZER}, trainer=served.url)
        first, second = small.workers[0].pid, small.add_worker().pid
        grown.set()
        shares = Counter(result.worker for result in batch.results())
        pids = {worker["worker_id"]: worker["pid"] for worker in client.workers()}
    taken = {pids[worker]: count for worker, count in shares.items()}
    assert sum(taken.values()) == 32
    assert taken[first] >= 8
    assert taken[second] >= 8


async def test_the_asyncio_way(pool: LocalPool, trainer: Trainer) -> None:
    async with pool.async_client() as client:
        batch = await client.submit(
            trainer.items(4), defaults={"tokenizer_name": TOKENIZER}, trainer=trainer.served.urls
        )
        assert len([result async for result in batch.results()]) == 4


def test_accepted_work_goes_on_after_a_restart(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer)
    with serve_callback(app, [0]) as served:
        with LocalPool(workers=0, flower=False, state=tmp_path) as first, first.client() as client:
            item = {"messages": [{"role": "user", "content": "What is 2 + 3?"}]}
            batch_id = client.submit([item], defaults={"tokenizer_name": TOKENIZER}, trainer=served.url).batch_id
            with pytest.raises(StateInUse):
                LocalPool(workers=0, flower=False, state=tmp_path).start()
        with LocalPool(workers=1, flower=False, state=tmp_path) as second, second.client() as client:
            (result,) = client.batch(batch_id).results()
    assert result.status is RolloutStatus.COMPLETED


async def test_it_starts_and_stops_without_blocking_the_loop() -> None:
    async with LocalPool(workers=0, flower=False) as pool:
        url = pool.url
        async with pool.async_client() as client:
            assert (await client.health()).model_dump() == {"status": "healthy", "service": "rollout-server"}
    async with AsyncRolloutClient(url, timeout=0) as client:
        with pytest.raises(PoolUnavailable):
            await client.health()


@pytest.mark.slow
def test_a_worker_that_does_not_get_on_is_given_up_after_the_time_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "slow_plugin.py").write_text("import time\ntime.sleep(25)\n")
    env = {"PYTHONPATH": str(tmp_path), "ROLLOUTPOOL_PLUGINS": "slow_plugin"}
    # With the default of two minutes it would start.
    with pytest.raises(ChildFailed, match="worker-1"), LocalPool(workers=1, flower=False, ready_seconds=3, env=env):
        pass


def test_a_flower_that_does_not_get_on_ends_no_pool() -> None:
    with LocalPool(workers=0) as pool:
        flower = pool._flower_child
        assert flower is not None
        # Only from here on: an API on a slow machine may use more than this second of CPU until it is ready.
        pool._ready_seconds = 1
        flower.send(signal.SIGSTOP)
        try:
            assert not pool.wait_flower()
            with pool.client() as client:
                assert client.health().status == "healthy"
        finally:
            flower.send(signal.SIGCONT)


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} .* --port or ROLLOUT_SERVER_PORT"):
            LocalPool(workers=0, port=port, flower=False).start()


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'rolloutpool-trainer\[pool\]'"):
        LocalPool()
