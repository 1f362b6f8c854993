"""The API on a real socket with a real Redis, and a worker that ends rollouts as the test says."""

from collections.abc import AsyncIterator

import httpx
import pytest
import redis.asyncio
from tests.support.inside_api import Api, client_of, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.secrets import SECRETS

from rolloutpool_common.store import Store


@pytest.fixture
async def api(redis_url: str) -> AsyncIterator[Api]:
    async with running_api(redis_url) as running:
        yield running


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(api) as made:
        yield made


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    opened = Store.open(redis_url, secrets=SECRETS)
    yield opened
    await opened.close()


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """Redis itself, whose memory may be limited: it has no limit afterwards."""
    opened = redis.asyncio.Redis.from_url(redis_url)
    yield opened
    await opened.config_set("maxmemory", 0)
    await opened.aclose()


@pytest.fixture
async def worker(store: Store) -> ScriptedWorker:
    """A worker that has announced itself."""
    made = ScriptedWorker(store)
    await made.announce()
    return made
