"""Whatever fits the API's description, and whatever does not, is answered, and never with a 5xx.

schemathesis makes the requests from the description that the API itself serves. A few paths get the names of things
that exist, so that not everything ends at a 404.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from tests.support.api_requests import batch
from tests.support.examples import examples
from tests.support.inside_api import running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.secrets import SECRETS

from rolloutpool_common.store import Store

AnyCase = Case[Any]
Operation = APIOperation[Any, Any, Any, Any]

EXAMPLES = examples(3, 6)
"""Of each operation and mode."""
WAITS_FOR_A_WORKER = "/v1/preflight"


@dataclass(frozen=True)
class Served:
    """An API on a thread of its own, and a batch in it that has ended."""

    url: str
    batch_id: str


@pytest.fixture
def served(redis_url: str) -> Iterator[Served]:
    """With a deadline that ends any synchronous rollout that the fuzzer gets accepted."""
    ready: list[Served] = []
    started, done = threading.Event(), threading.Event()

    async def serve() -> None:
        store = Store.open(redis_url, secrets=SECRETS)
        worker = ScriptedWorker(store)
        async with running_api(redis_url, rollout_timeout_seconds=0.01) as api:
            await worker.announce()
            async with httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=60) as client:
                batch_id = (await client.post("/v1/batches", json=batch(1))).json()["batch_id"]
            await worker.end(f"{batch_id}-0")
            ready.append(Served(api.url, batch_id))
            started.set()
            while not done.is_set():
                await asyncio.to_thread(done.wait, 1.0)
                await worker.announce()
        await store.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(30)
        yield ready[0]
    finally:
        done.set()
        thread.join()


def operations(served: Served) -> list[Operation]:
    """All that the description has, but for what waits half a minute for a worker to answer it."""
    schema = schemathesis.openapi.from_dict(httpx.get(f"{served.url}/openapi.json", trust_env=False).json())
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    return [operation for operation in found if operation.path != WAITS_FOR_A_WORKER]


def name_what_exists(case: AnyCase, served: Served) -> None:
    """Puts the batch that exists, or its rollout, in place of some of the names that were made up."""
    for name, made_up in case.path_parameters.items():
        if len(str(made_up)) % 2:
            case.path_parameters[name] = served.batch_id if name == "batch_id" else f"{served.batch_id}-0"


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(GenerationMode.POSITIVE, id="fitting", marks=pytest.mark.slow),
        pytest.param(GenerationMode.NEGATIVE, id="not fitting"),
    ],
)
def test_no_request_is_answered_with_a_5xx(served: Served, mode: GenerationMode) -> None:
    seen: set[int] = set()
    with requests.Session() as session:
        session.trust_env = False

        def fuzz(operation: Operation) -> None:
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def answered(case: AnyCase) -> None:
                name_what_exists(case, served)
                response = case.call(base_url=served.url, session=session, timeout=90)
                seen.add(response.status_code)
                assert response.status_code < 500, (case.as_curl_command(), response.text)

            answered()

        tried = operations(served)
        assert len(tried) > 10
        for operation in tried:
            # What takes nothing can't be called in a way that does not fit.
            with contextlib.suppress(Unsatisfiable):
                fuzz(operation)
    # It was not all refused at the door.
    assert {404, 422} <= seen
