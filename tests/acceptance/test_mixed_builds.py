"""Builds of other commits beside this one: their workers against this API, and this build's worker against their API.

All of them keep their data in the same form (`store/schema.py`). A build that keeps it otherwise is refused at its
first connection (`tests/integration/store/test_schema.py`), and does not belong into `builds.txt`.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.inside_api import client_of, running_api
from tests.support.other_builds import listed_builds, sources_of, with_sources
from tests.support.redis_server import free_port, running_redis
from tests.support.secrets import secrets_file
from tests.support.waiting import until
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ANYWHERE = "*,127.0.0.0/8,::1"
LONG = 60.0
"""Seconds: two processes import transformers at the same time."""


@pytest.fixture(params=listed_builds(), ids=lambda commit: commit[:9])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The sources of another build."""
    return sources_of(request.param, tmp_path)


@pytest.fixture
def redis_of_its_own() -> Iterator[str]:
    """A Redis whose workers no other test meets."""
    with running_redis() as server:
        yield server.url


@pytest.fixture
def trainer_url(tokenizer: ChatTokenizer) -> Iterator[str]:
    """A trainer that takes a tenth of a second for a turn, so that all workers get some rollouts."""
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.1), tokenizer=tokenizer)
    with serve_callback(app, [0]) as served:
        yield served.url


async def submit(client: httpx.AsyncClient, trainer_url: str, count: int, **options: Any) -> str:
    """Submits a batch; returns its id."""
    rollouts = [{"messages": [{"role": "user", "content": f"Calculate {n} + 2"}]} for n in range(count)]
    defaults = {"tokenizer_name": TINY, "server_url": trainer_url, **options}
    accepted = await client.post("/v1/batches", json={"rollouts": rollouts, "defaults": defaults})
    assert accepted.status_code == 202, accepted.text
    return str(accepted.json()["batch_id"])


async def results(client: httpx.AsyncClient, batch_id: str) -> list[dict[str, Any]]:
    """The results of a batch, once it is complete."""

    async def complete() -> bool:
        state = (await client.get(f"/v1/batches/{batch_id}")).json()
        return bool(state["state"] == "complete")

    await until(complete, LONG)
    page = (await client.get(f"/v1/batches/{batch_id}/results", params={"limit": 1000})).json()
    return [item["result"] for item in page["items"]]


async def workers(client: httpx.AsyncClient, count: int) -> dict[int, str]:
    """The ids of the workers by their pid, once there are so many."""

    async def listed() -> dict[int, str] | None:
        found = (await client.get("/v1/workers")).json()["workers"]
        return {one["pid"]: one["worker_id"] for one in found} if len(found) == count else None

    return await until(listed, LONG)


@contextlib.asynccontextmanager
async def api_of(build: Path, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """An API process of another build, and a client of it."""
    port = free_port()
    environment = {
        "ROLLOUTPOOL_REDIS_URL": redis_url,
        "ROLLOUT_SERVER_PORT": str(port),
        "ROLLOUTPOOL_SECRETS_FILE": str(secrets_file()),
        "ROLLOUTPOOL_ALLOWED_TARGETS": ANYWHERE,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rolloutpool_api"),
        env=with_sources(build, environment),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:

            async def healthy() -> bool:
                assert process.returncode is None
                with contextlib.suppress(httpx.TransportError):
                    return (await client.get("/health")).status_code == 200
                return False

            await until(healthy, LONG)
            yield client
    finally:
        process.kill()
        await process.wait()


async def test_a_worker_of_another_build_gets_what_it_can_run_and_nothing_else(
    build: Path, redis_of_its_own: str, trainer_url: str
) -> None:
    paths = with_sources(build)["PYTHONPATH"].split(os.pathsep)
    async with running_api(redis_of_its_own) as api, client_of(api) as client:
        with started_worker(redis_of_its_own, [Path(path) for path in paths]) as old:
            other = (await workers(client, 1))[old.process.pid]
            assert (await client.get("/readyz")).status_code == 200
            alone = await results(client, await submit(client, trainer_url, 4))
            assert {(result["status"], result["worker"]) for result in alone} == {("completed", other)}
            with started_worker(
                redis_of_its_own, [ROOT], ROLLOUTPOOL_PLUGINS="tests.support.graders", GRADER_LOG=os.devnull
            ) as new:
                ours = (await workers(client, 2))[new.process.pid]
                judged = {"grader": {"name": "returns", "options": "a number"}}
                batches = [await submit(client, trainer_url, 30, **judged), await submit(client, trainer_url, 30)]
                graded, plain = [await results(client, batch_id) for batch_id in batches]
    assert {(result["status"], result["worker"], result["attempt"]) for result in graded} == {("completed", ours, 1)}
    assert {result["status"] for result in plain} == {"completed"}
    assert (len(graded), len(plain)) == (30, 30)
    assert old.process.poll() is not None


async def test_a_worker_of_this_build_serves_an_api_of_another(
    build: Path, redis_of_its_own: str, trainer_url: str
) -> None:
    async with api_of(build, redis_of_its_own) as client:
        with started_worker(redis_of_its_own) as new:
            ours = (await workers(client, 1))[new.process.pid]
            assert (await client.get("/readyz")).status_code == 200
            found = await results(client, await submit(client, trainer_url, 8))
    assert {(result["status"], result["worker"]) for result in found} == {("completed", ours)}
    assert len(found) == 8
