"""The API on a real socket with a real Redis, and a worker that ends rollouts as the test says."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import pytest
from tests.support.secrets import SECRETS, secrets_file

from rolloutpool_api.__main__ import ApiServer
from rolloutpool_api.app import create_app
from rolloutpool_api.settings import Settings
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.messages import Message, ToolDefinition, ToolFunction
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Claim, Store

T = TypeVar("T")

OWNER = "public"


async def until(look: Callable[[], Awaitable[T | None]], seconds: float = 10) -> T:
    """What `look` returns as soon as it is neither None nor False."""
    end = time.monotonic() + seconds
    while True:
        found = await look()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < end, f"nothing came of {look} within {seconds} s"
        await asyncio.sleep(0.01)


@dataclass
class Api:
    """A running API process' inside."""

    server: ApiServer
    serving: asyncio.Task[None]
    url: str
    settings: Settings

    async def stop(self) -> None:
        """As SIGTERM does."""
        self.server.should_exit = True
        await self.serving


@contextlib.asynccontextmanager
async def running_api(redis_url: str, **settings: Any) -> AsyncIterator[Api]:
    """The API on a free port, which keeps secrets and lets any host be called."""
    usual = {"rolloutpool_allowed_targets": "*,0.0.0.0/0,::/0", "rolloutpool_secrets_file": secrets_file()}
    configured = Settings(rolloutpool_redis_url=redis_url, **{**usual, **settings})
    listener = socket.create_server(("127.0.0.1", 0))
    server = ApiServer(create_app(configured))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    api = Api(server, serving, f"http://127.0.0.1:{listener.getsockname()[1]}", configured)
    try:

        async def started() -> bool:
            return server.started

        await until(started)
        yield api
    finally:
        await api.stop()


@contextlib.asynccontextmanager
async def client_of(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a generous time-out: what is slow here is the machine."""
    async with httpx.AsyncClient(base_url=api.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture
async def api(redis_url: str) -> AsyncIterator[Api]:
    async with running_api(redis_url) as running:
        yield running


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(api) as made:
        yield made


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    opened = Store.open(redis_url, secrets=SECRETS)
    yield opened
    await opened.close()


def calculator() -> list[ToolDefinition]:
    """Four tools in the order of protocol v1."""
    return [ToolDefinition(function=ToolFunction(name=name)) for name in ("add", "subtract", "multiply", "divide")]


class ScriptedWorker:
    """Claims and ends rollouts when the test tells it to."""

    def __init__(self, store: Store, worker_id: str = "w1") -> None:
        self.store = store
        self.worker_id = worker_id

    async def announce(self, **changes: Any) -> None:
        about: dict[str, Any] = {
            "host": "testhost",
            "pid": 1,
            "slots": 8,
            "tools": calculator(),
            "agents": ["tool_calls"],
            "termination_strategies": ["task_completion"],
            "tokenizers": {},
            "versions": {},
        }
        await self.store.workers.announce(self.worker_id, **{**about, **changes})

    async def claim(self, uid: str) -> Claim:
        claim = await self.store.rollouts.claim(uid, self.worker_id)
        assert isinstance(claim, Claim), claim
        return claim

    async def end(self, uid: str, **changes: Any) -> RolloutResult:
        """Claims and completes a rollout, with `changes` to its result."""
        claim = await self.claim(uid)
        result = result_of(claim, **changes)
        await self.store.rollouts.finish(claim, result)
        return result

    async def end_named(self, rollout_id: str, **changes: Any) -> RolloutResult:
        """As `end`, as soon as somebody has submitted a rollout of this name."""
        return await self.end(await until(lambda: self.store.rollouts.find(rollout_id, OWNER)), **changes)


def result_of(claim: Claim, **changes: Any) -> RolloutResult:
    """A plain completed result."""
    answer = Message(role="assistant", content="42")
    fields: dict[str, Any] = {
        "uid": claim.uid,
        "rollout_id": claim.spec.rollout_id,
        "batch_id": claim.batch_id,
        "index": claim.index,
        "group": claim.spec.group,
        "metadata": claim.spec.metadata,
        "status": RolloutStatus.COMPLETED,
        "finish_reason": FinishReason.STOP,
        "messages": [*claim.spec.messages, answer],
        "num_llm_calls": 1,
        "prompt_tokens": 10,
        "response_tokens": 3,
        "worker": claim.worker_id,
    }
    return RolloutResult(**{**fields, **changes})


@pytest.fixture
async def worker(store: Store) -> ScriptedWorker:
    """A worker that has announced itself."""
    made = ScriptedWorker(store)
    await made.announce()
    return made


def v1_request(**changes: Any) -> dict[str, Any]:
    """A valid `POST /rollout`; a change to `...` takes the field out."""
    body: dict[str, Any] = {
        "rollout_id": "job-step1-idx0-ab12",
        "server_url": "http://127.0.0.1:8081/",
        "messages": [{"role": "user", "content": "Calculate 5 + 3"}],
        "sampling_params": {},
        "tokenizer_name": "tiny",
    }
    return {key: value for key, value in {**body, **changes}.items() if value is not ...}


def batch(count: int = 2, **changes: Any) -> dict[str, Any]:
    """A valid batch of `count` rollouts."""
    body: dict[str, Any] = {
        "defaults": {"tokenizer_name": "tiny", "server_url": "http://127.0.0.1:8081"},
        "rollouts": [{"messages": [{"role": "user", "content": f"Calculate {i} + 3"}]} for i in range(count)],
    }
    return {**body, **changes}
