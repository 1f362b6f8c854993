"""A pool by script, as clients and commands meet it."""

from collections.abc import Iterator

import pytest
from tests.support.stub_pool import StubPool, stub_pool


@pytest.fixture
def pool() -> Iterator[StubPool]:
    """It answers what the test lays out."""
    with stub_pool() as served:
        yield served
