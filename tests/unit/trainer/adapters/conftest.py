"""A pool by script, which answers each submit with a batch that has ended."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.api_documents import results_page
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_trainer.adapters.driver import PoolDriver


@pytest.fixture
def driver(pool: StubPool) -> PoolDriver:
    return PoolDriver(pool.url, retries=1, trainer="http://h:1", defaults={"tokenizer_name": "t"})


@pytest.fixture
def ends(pool: StubPool) -> Callable[..., None]:
    """Lays out batches: of each, the changes to its results, in their order."""

    def lay_out(*batches: list[dict[str, Any]]) -> None:
        for number, results in enumerate(batches):
            name = f"b{number:032d}"
            receipt = {
                "batch_id": name,
                "total": len(results),
                "rollouts": [f"{name}-{i}" for i in range(len(results))],
            }
            pool.on("POST", "/v1/batches", Answer(202, receipt))  # The last to end comes first, as it may.
            found = {i: results[i] for i in reversed(range(len(results)))}
            pool.on("GET", f"/v1/batches/{name}/results", Answer(body=results_page(name, found)))

    return lay_out
