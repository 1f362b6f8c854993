"""A store on an empty Redis."""

from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from tests.support.secrets import SECRETS

from rolloutpool_common.store import Store


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    opened = Store.open(redis_url, secrets=SECRETS)
    yield opened
    await opened.close()


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[Store]:
    """The same Redis, as another process sees it."""
    opened = Store.open(redis_url, secrets=SECRETS)
    yield opened
    await opened.close()


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """Redis itself, to look at keys and to break them."""
    client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()
