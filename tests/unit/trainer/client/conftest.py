"""A client of the scripted pool, of each kind in turn."""

from collections.abc import Iterator

import pytest
from tests.support.both_clients import KINDS, opened
from tests.support.stub_pool import StubPool

from rolloutpool_trainer.client.sync import RolloutClient


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which client."""
    return str(request.param)


@pytest.fixture
def client(pool: StubPool, kind: str) -> Iterator[RolloutClient]:
    """It insists for five seconds."""
    with opened(kind, pool.url, "key") as made:
        yield made
