"""A policy that programs can lead, its endpoint, and a door, for all tests here."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.harness import DoorProcess, LedPolicy, running_door
from tests.support.pool import Pool

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback


@pytest.fixture(scope="package")
def led(tokenizer: ChatTokenizer) -> LedPolicy:
    return LedPolicy(tokenizer)


@pytest.fixture(scope="package")
def led_url(led: LedPolicy, tokenizer: ChatTokenizer) -> Iterator[str]:
    with serve_callback(callback_app(led, tokenizer=tokenizer), [0]) as served:
        yield served.url


@pytest.fixture(scope="package")
def door(pool_url: str) -> Iterator[DoorProcess]:
    with running_door(pool_url) as process:
        yield process


@pytest.fixture
async def reconciled(pool: Pool) -> AsyncIterator[Pool]:
    async with pool.reconciled():
        yield pool
