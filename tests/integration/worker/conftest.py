"""One worker process and one honest trainer for all tests here, over a Redis that is not emptied between tests."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.pool import Pool, opened_pool
from tests.support.redis_server import running_redis
from tests.support.worker_process import ROOT, Worker, started_worker
from tests.tokenizers.real import LOADED

from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy
from rolloutpool_worker.policy.certificates import verifying
from rolloutpool_worker.tools import TOOLS

CALCULATOR = ("add", "subtract", "multiply", "divide")


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Has this process believe the authorities in a file, and no others."""

    def believe(file: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        verifying.cache_clear()

    yield believe
    verifying.cache_clear()


@pytest.fixture(scope="session")
def pool_url() -> Iterator[str]:
    """A Redis of its own: `redis_url` empties the shared one, which would break a running worker."""
    with running_redis() as server:
        yield server.url


@pytest.fixture(scope="session")
def worker(pool_url: str) -> Iterator[Worker]:
    """A worker with short limits and the plug-ins of `tests.support.plugins`."""
    with started_worker(
        pool_url,
        [ROOT],
        ROLLOUTPOOL_PLUGINS="tests.support.plugins",
        ROLLOUTPOOL_MAX_REPLY_MB="2",
        ROLLOUTPOOL_TRAINER_ATTEMPTS="3",
        ROLLOUTPOOL_INFRA_RETRIES="0",
        ROLLOUTPOOL_TOOL_TIMEOUT="1",
        HTTP_CLIENT_TIMEOUT="4",
    ) as process:
        yield process


@pytest.fixture
async def pool(pool_url: str, worker: Worker) -> AsyncIterator[Pool]:
    """The pool with that worker, ready."""
    async with opened_pool(pool_url) as opened:
        await worker.announced(opened.store)
        yield opened


@pytest.fixture(scope="session")
def policy(tokenizer: ChatTokenizer) -> CallbackApp:
    """A strict endpoint around a policy that calculates."""
    tools = [tool.definition for tool in TOOLS.values() if tool.name in CALCULATOR]
    return callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=tools)


@pytest.fixture(scope="session")
def trainer(policy: CallbackApp) -> Iterator[str]:
    """Its address."""
    with serve_callback(policy, [0]) as served:
        yield served.url


@pytest.fixture(scope="session")
def tokenizers() -> TokenizerCache:
    """For all workers inside this process: loading a real one takes seconds."""
    return LOADED


@pytest.fixture
async def inside(redis_url: str, tokenizers: TokenizerCache) -> AsyncIterator[InsideWorker]:
    """A worker inside the test's own process."""
    async with inside_worker(redis_url, tokenizers, infra_retries=0) as worker:
        yield worker
