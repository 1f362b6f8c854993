"""A worker inside the test's own process whose store is on fakeredis."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.fake_store import FakeServer, fake_store
from tests.support.inside_worker import InsideWorker, inside_worker

from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_common.store import Store

FAKE_URL = "redis://fake"


@pytest.fixture(scope="session")
def tokenizers() -> TokenizerCache:
    """For all workers of these tests."""
    return TokenizerCache(4)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `tests.support.graders` note which of them was asked, about what."""
    path = tmp_path / "graders"
    path.touch()
    monkeypatch.setenv("GRADER_LOG", str(path))
    return path


@pytest.fixture
def fake_redis(monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty fakeredis: every store that the test opens has its data there."""
    server = FakeServer()

    def opened(url: str, **_: object) -> Store:
        assert url == FAKE_URL
        return fake_store(server)

    monkeypatch.setattr(Store, "open", opened)
    return FAKE_URL


@pytest.fixture
async def store(fake_redis: str) -> AsyncIterator[Store]:
    """The data as the API sees it."""
    opened = Store.open(fake_redis)
    yield opened
    await opened.close()


@pytest.fixture
async def inside(fake_redis: str, tokenizers: TokenizerCache) -> AsyncIterator[InsideWorker]:
    """A worker that asks each turn once and gives nothing back to the queue."""
    async with inside_worker(fake_redis, tokenizers, infra_retries=0, trainer_attempts=1) as worker:
        yield worker
