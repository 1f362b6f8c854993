"""A real API with a scripted worker, and a client of it."""

from collections.abc import AsyncIterator

import pytest
from tests.support.inside_api import Api, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.secrets import SECRETS

from rolloutpool_common.store import Store
from rolloutpool_trainer.client.aio import AsyncRolloutClient


@pytest.fixture
async def api(redis_url: str) -> AsyncIterator[Api]:
    async with running_api(redis_url) as running:
        yield running


@pytest.fixture
async def worker(redis_url: str) -> AsyncIterator[ScriptedWorker]:
    store = Store.open(redis_url, secrets=SECRETS)
    made = ScriptedWorker(store)
    await made.announce()
    yield made
    await store.close()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncRolloutClient]:
    async with AsyncRolloutClient(api.url) as made:
        yield made
