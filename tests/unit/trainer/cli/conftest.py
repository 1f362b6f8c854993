"""The pool that commands ask where they are not told another."""

import pytest
from tests.support.stub_pool import StubPool


@pytest.fixture
def pool(pool: StubPool, monkeypatch: pytest.MonkeyPatch) -> StubPool:
    monkeypatch.setenv("ROLLOUTPOOL_URL", pool.url)
    return pool
