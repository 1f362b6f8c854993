"""A batch whose results are pushed: how it is submitted, and pushed again."""

from collections.abc import Iterator

import pytest
from tests.support.stub_pool import Answer, StubPool, stub_pool

from rolloutpool_trainer import RolloutClient

DELIVERY = {"callback_url": "http://h/push", "secret": "12345678"}
BATCH = "b" + "0" * 32


@pytest.fixture
def pool() -> Iterator[StubPool]:
    with stub_pool() as running:
        yield running


def test_a_submit_says_where_results_go_and_a_batch_has_them_pushed_again(pool: StubPool) -> None:
    accepted = {"batch_id": BATCH, "total": 1, "rollouts": [f"{BATCH}-0"]}
    pool.on("POST", "/v1/batches", Answer(202, accepted))
    pool.on("POST", f"/v1/batches/{BATCH}/pushes/retry", Answer(200, {"batch_id": BATCH, "due": 3}))
    with RolloutClient(pool.url) as client:
        batch = client.submit([{"messages": [{"role": "user", "content": "x"}]}], delivery=DELIVERY)
        assert batch.retry_pushes() == 3
    assert pool.requests[0].body["delivery"] == DELIVERY
