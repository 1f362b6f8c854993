"""A pool with a door and a runner, and agents that people ship in `build/agents` (`make test-agents`)."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.agent_policy import AgentPolicy
from tests.support.harness import DoorProcess, running_door, running_runner
from tests.support.pool import Pool, opened_pool
from tests.support.redis_server import running_redis
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback

AGENTS = Path(__file__).parents[2] / "build" / "agents"
CONTEXT = 1_000_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not (AGENTS / ".complete").exists():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs the agents: make test-agents"))


@pytest.fixture(scope="session")
def policy(tokenizer: ChatTokenizer) -> AgentPolicy:
    return AgentPolicy(tokenizer)


@pytest.fixture(scope="session")
def agents_redis() -> Iterator[str]:
    with running_redis() as server:
        yield server.url


@pytest.fixture(scope="session")
def agents_door(agents_redis: str) -> Iterator[DoorProcess]:
    path = os.pathsep.join([str(AGENTS / "node_modules" / ".bin"), str(AGENTS / "py" / "bin"), os.environ["PATH"]])
    with (
        running_door(agents_redis) as door,
        started_worker(agents_redis, [ROOT]),
        running_runner(agents_redis, door, PATH=path),
    ):
        yield door


@pytest.fixture
async def agents_pool(agents_redis: str, agents_door: DoorProcess) -> AsyncIterator[Pool]:
    async with opened_pool(agents_redis) as pool, pool.reconciled():
        yield pool


@pytest.fixture(scope="session")
def callback_url(policy: AgentPolicy, tokenizer: ChatTokenizer) -> Iterator[str]:
    with serve_callback(callback_app(policy, tokenizer=tokenizer), [0]) as served:
        yield served.url


@pytest.fixture
async def engine_url(policy: AgentPolicy, tokenizer: ChatTokenizer) -> AsyncIterator[str]:
    from tests.support.vllm_server import vllm_server

    async with vllm_server(tokenizer, "unused") as engine:
        engine.context, engine.sampler, engine.keeps_requests = CONTEXT, policy.sample, False
        yield engine.url
