"""An upgrade from each build in `builds.txt`, while it works: its work is finished, and its workers run dry.

These builds keep data of a schema that this one reads (`store/schema.py`). A build of any other schema is refused at
its first connection (`tests/integration/store/test_schema.py`), and does not belong into `builds.txt`.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from tests.support.inside_api import client_of, running_api
from tests.support.other_builds import listed_builds, sources_of, with_sources
from tests.support.ports import free_port
from tests.support.redis_server import running_redis
from tests.support.secrets import secrets_file
from tests.support.waiting import until, until_true
from tests.support.worker_process import started_worker

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_common.store.schema import SCHEMA_VERSION
from rolloutpool_trainer import GenerateParams, Generation, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ANYWHERE = "*,127.0.0.0/8,::1"
SLOTS = 4
"""The rollouts that the older worker has at a time."""

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


class HeldPolicy:
    """A scripted policy that samples nothing until it is let go."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._policy = ScriptedPolicy(tokenizer)
        self.go_on = threading.Event()
        self.asked_for: set[str] = set()
        """The rollouts that have been asked for."""

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        """Samples the next turn, once the policy is let go."""
        self.asked_for.add(params.rollout_id)
        await until_true(self.go_on.is_set, LONG)
        return await self._policy(prompt_ids, params)


@pytest.fixture
def policy(tokenizer: ChatTokenizer) -> HeldPolicy:
    """What the trainer samples with."""
    return HeldPolicy(tokenizer)


@pytest.fixture
def trainer_url(policy: HeldPolicy, tokenizer: ChatTokenizer) -> Iterator[str]:
    """A trainer with that policy."""
    with serve_callback(callback_app(policy, tokenizer=tokenizer), [0]) as served:
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


async def is_ours(redis_url: str) -> bool:
    """Whether the data is of this release."""
    async with redis.asyncio.Redis.from_url(redis_url) as raw:
        return await raw.get("rp:schema") == str(SCHEMA_VERSION).encode()


async def asked_for(policy: HeldPolicy, count: int) -> bool:
    """Whether the trainer has been asked for so many rollouts."""
    return len(policy.asked_for) >= count


@pytest.mark.slow
async def test_a_pool_of_the_release_before_is_upgraded_while_it_works(
    build: Path, redis_of_its_own: str, policy: HeldPolicy, trainer_url: str
) -> None:
    paths = with_sources(build)["PYTHONPATH"].split(os.pathsep)
    older = partial(
        started_worker, redis_of_its_own, [Path(path) for path in paths], ROLLOUTPOOL_WORKER_SLOTS=str(SLOTS)
    )
    async with contextlib.AsyncExitStack() as before:
        old_client = await before.enter_async_context(api_of(build, redis_of_its_own))
        old = before.enter_context(older())
        other = (await workers(old_client, 1))[old.process.pid]
        begun = await submit(old_client, trainer_url, 60)
        await until(partial(asked_for, policy, SLOTS), LONG)
        async with running_api(redis_of_its_own) as api, client_of(api) as client:
            with started_worker(redis_of_its_own) as new:
                ours = (await workers(client, 2))[new.process.pid]
                listed = (await client.get("/v1/workers")).json()["workers"]
                assert {one["worker_id"]: one["reads"] for one in listed} == {other: 2, ours: SCHEMA_VERSION}
                later = await submit(client, trainer_url, 20)
                # The older worker is full, so these are the new one's: the upgrade comes in the middle of the work.
                await until(partial(asked_for, policy, SLOTS + 1), LONG)
                policy.go_on.set()
                of_later, of_begun = await results(client, later), await results(client, begun)
                old.terminate()
                assert await old.ended() == 0
                # As long as it leads, it tidies up by its own rules.
                await before.aclose()
                await until(partial(is_ours, redis_of_its_own), LONG)
                # Nobody who knows the older data alone can come any more.
                with older() as late:
                    assert await late.ended() != 0
                    assert f"holds data of schema version {SCHEMA_VERSION}" in late.log()
                alone = await results(client, await submit(client, trainer_url, 4))
    assert {(one["status"], one["worker"], one["attempt"]) for one in of_later} == {("completed", ours, 1)}
    assert {(one["status"], one["attempt"]) for one in of_begun} == {("completed", 1)}
    assert {one["worker"] for one in of_begun} == {other, ours}
    assert (len(of_later), len(of_begun), len(alone)) == (20, 60, 4)


@pytest.mark.slow
async def test_an_upgrade_is_taken_back_while_it_works(
    build: Path, redis_of_its_own: str, policy: HeldPolicy, trainer_url: str
) -> None:
    paths = with_sources(build)["PYTHONPATH"].split(os.pathsep)
    older = [Path(path) for path in paths]
    with started_worker(redis_of_its_own, older, ROLLOUTPOOL_WORKER_SLOTS=str(SLOTS)) as old:
        async with api_of(build, redis_of_its_own) as client:
            other = (await workers(client, 1))[old.process.pid]
        with started_worker(redis_of_its_own) as new:
            async with running_api(redis_of_its_own) as api, client_of(api) as client:
                ours = (await workers(client, 2))[new.process.pid]
                begun = await submit(client, trainer_url, 20)
                await until(partial(asked_for, policy, 1), LONG)
            # The API has gone back, in the middle of what the newer one had accepted.
            async with api_of(build, redis_of_its_own) as client:
                later = await submit(client, trainer_url, 20)
                policy.go_on.set()
                of_begun, of_later = await results(client, begun), await results(client, later)
                # Then the newer workers go, once nothing is open that the newer API had accepted.
                new.terminate()
                assert await new.ended() == 0
                alone = await results(client, await submit(client, trainer_url, 4))
                assert not await is_ours(redis_of_its_own)
    assert {(one["status"], one["worker"], one["attempt"]) for one in of_begun} == {("completed", ours, 1)}
    assert {(one["status"], one["attempt"]) for one in of_later} == {("completed", 1)}
    assert {one["worker"] for one in alone} == {other}
