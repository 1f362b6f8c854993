"""A container's workers are healthy where one of them beats and takes work."""

import socket
from typing import Any

import pytest
from tests.support.batches import announce, beat
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.store import Store, StoreUnavailable
from rolloutpool_common.store.workers import Workers
from rolloutpool_worker.process import health
from rolloutpool_worker.process.health import find_fault


async def test_a_worker_that_beats_is_healthy(fake_redis: str, store: Store) -> None:
    assert await find_fault(fake_redis, "testhost") == "no worker of host testhost has announced itself"
    await announce(store, "elsewhere")
    assert await find_fault(fake_redis, "testhost") is not None
    await ScriptedWorker(store).announce()
    assert await find_fault(fake_redis, "testhost") is None


async def test_one_that_drains_or_is_late_is_not_unless_another_one_works(fake_redis: str, store: Store) -> None:
    await ScriptedWorker(store).announce()
    await beat(store, "w1", running=0, tokenizers={}, draining=True)
    assert await find_fault(fake_redis, "testhost") == "worker w1 drains"
    await store.workers._redis.zadd("rp:workers", {"w1": 1})
    await store.workers._redis.hset("rp:worker:w1", "draining", 0)
    assert await find_fault(fake_redis, "testhost") == "worker w1 is silent"
    await ScriptedWorker(store, "w2").announce()
    assert await find_fault(fake_redis, "testhost") is None


async def test_a_redis_that_is_away_is_a_fault(fake_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def down(_: Workers) -> Any:
        raise StoreUnavailable

    monkeypatch.setattr(Workers, "known", down)
    assert await find_fault(fake_redis, "testhost") == StoreUnavailable().message


def test_the_exit_code(fake_redis: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("ROLLOUTPOOL_REDIS_URL", raising=False)
    assert health.main() == 2
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://127.0.0.1:1")

    async def found(url: str, host: str) -> str | None:
        assert (url, host) == ("redis://127.0.0.1:1", socket.gethostname())
        return answers.pop()

    answers = [None, "it drains"]
    monkeypatch.setattr(health, "find_fault", found)
    assert [health.main(), health.main()] == [1, 0]
    assert "it drains" in capsys.readouterr().err
