"""Questions are handed on to a pool as they are, with a key that the page never sees; nothing else is."""

import pytest
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_trainer.viewer.pool_relay import PoolRelay


def test_path_query_and_key_arrive_as_they_were(pool: StubPool) -> None:
    pool.on("GET", "/v1/rollouts/a%2Fb%3F", Answer(200, {"uid": "a/b?"}))
    relay = PoolRelay(f"{pool.url}/", "rpk_ours")
    assert relay.answer("/v1/rollouts/a%2Fb%3F", "where=group%3Dx%20y", "Bearer typed") == (200, b'{"uid": "a/b?"}')
    (seen,) = pool.requests
    assert seen.path.partition("?")[2] == "where=group%3Dx%20y"
    assert seen.headers["Authorization"] == "Bearer rpk_ours"
    relay.close()


def test_without_a_key_the_readers_own_is_sent(pool: StubPool) -> None:
    pool.on("GET", "/v1/batches", Answer(401, {"error": {"message": "this key is unknown"}}))
    relay = PoolRelay(pool.url, None)
    assert relay.answer("/v1/batches", "", "Bearer typed")[0] == 401
    assert relay.answer("/v1/batches", "")[0] == 401
    assert [seen.headers.get("Authorization") for seen in pool.requests] == ["Bearer typed", None]
    relay.close()


@pytest.mark.parametrize(
    "path",
    ["/v1/workers", "/metrics", "/v1/batchesx", "/v1/batches/../workers", "//other/v1/batches", "", "/v1", "http://x"],
)
def test_nothing_else_is_handed_on(pool: StubPool, path: str) -> None:
    relay = PoolRelay(pool.url, "rpk_ours")
    assert relay.answer(path, "")[0] == 404
    assert pool.requests == []
    relay.close()


def test_a_pool_that_is_away_is_said(pool: StubPool) -> None:
    pool.on("GET", "/v1/batches", Answer(drop=True))
    relay = PoolRelay(pool.url, None)
    status, body = relay.answer("/v1/batches", "")
    assert status == 502
    assert b"the pool does not answer" in body
    relay.close()
