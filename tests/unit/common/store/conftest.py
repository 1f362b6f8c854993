"""A store on fakeredis, and the same data as another process sees it."""

from collections.abc import AsyncIterator

import pytest
from fakeredis import FakeAsyncRedis
from tests.support.fake_store import FakeServer, fake_store

from rolloutpool_common.store import Store


@pytest.fixture
def server() -> FakeServer:
    """A Redis that holds nothing yet."""
    return FakeServer()


@pytest.fixture
async def store(server: FakeServer) -> AsyncIterator[Store]:
    opened = fake_store(server)
    yield opened
    await opened.close()


@pytest.fixture
async def other(server: FakeServer) -> AsyncIterator[Store]:
    """The same Redis, as another process sees it."""
    opened = fake_store(server)
    yield opened
    await opened.close()


@pytest.fixture
def raw(server: FakeServer) -> FakeAsyncRedis:
    """Redis itself, to look at keys and to break them."""
    return FakeAsyncRedis(server=server)
