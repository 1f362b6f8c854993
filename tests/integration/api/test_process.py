"""The API as a process: its exit codes, its messages, and how fast it goes when told to."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time

import httpx
import pytest
from tests.support.api_requests import batch, v1_request
from tests.support.forked_worker import forked
from tests.support.inside_api import client_of, running_api
from tests.support.ports import free_port
from tests.support.scripted_worker import OWNER, ScriptedWorker
from tests.support.waiting import until

from rolloutpool_common.store import Store

ENTRY = f"job:submit+read:{'ab' * 32}"


API = "rolloutpool_api.__main__"


def refusal(**environment: str) -> str:
    """What an API says that does not start."""
    with forked(API, **environment) as (api, log):
        assert api.wait() == 2
        said = log.read_text()
    assert "Traceback" not in said
    return said


async def healthy(client: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return (await client.get("/health")).status_code == 200
    return False


async def test_it_serves_and_stops_cleanly(redis_url: str) -> None:
    """With its imports, as it is started."""
    port = free_port()
    environment = {"ROLLOUTPOOL_REDIS_URL": redis_url, "ROLLOUT_SERVER_PORT": str(port)}
    api = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rolloutpool_api"), env={**os.environ, **environment}, stderr=asyncio.subprocess.PIPE
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        await until(lambda: healthy(client), 30)
        api.send_signal(signal.SIGTERM)
        _, log = await api.communicate()
    assert api.returncode == 0
    assert b'"event": "api listens"' in log
    assert b"Traceback" not in log


def test_a_taken_port_is_named(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal(ROLLOUTPOOL_REDIS_URL=redis_url, ROLLOUT_SERVER_PORT=port)
    assert f"port {port} on 127.0.0.1 is in use" in said
    assert "ROLLOUT_SERVER_PORT" in said


def test_missing_settings_are_named() -> None:
    said = refusal(MAX_CONCURRENT_ROLLOUTS="none")
    assert "ROLLOUTPOOL_REDIS_URL is not set" in said
    assert "MAX_CONCURRENT_ROLLOUTS: Input should be a valid integer" in said


async def test_waiters_do_not_delay_the_stop(redis_url: str, store: Store, worker: ScriptedWorker) -> None:
    async with running_api(redis_url, max_concurrent_rollouts=1) as api, client_of(api) as client:
        batch_id = (await client.post("/v1/batches", json=batch())).json()["batch_id"]

        async def stream() -> str:
            async with client.stream("GET", f"/v1/batches/{batch_id}/events") as response:
                streaming.set()
                return (await response.aread()).decode()

        streaming = asyncio.Event()
        events = asyncio.create_task(stream())
        polls = [
            asyncio.create_task(client.get(f"/v1/batches/{batch_id}/results", params={"wait": 60})) for _ in range(20)
        ]
        running = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="running")))
        uid = await until(lambda: store.rollouts.find("running", OWNER))
        queued = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="queued")))
        await streaming.wait()
        await client.get("/health")

        started = time.monotonic()
        await api.stop()
        assert time.monotonic() - started < 3
        for response in [await running, await queued]:
            assert response.status_code == 503
            assert "ask again" in response.json()["detail"]
        for poll in polls:
            assert (await poll).status_code == 503
        assert "event: complete" not in await events

    # What ran goes on: the same request to the next process joins it.
    async with running_api(redis_url) as successor, client_of(successor) as client:
        again = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="running")))
        await worker.end(uid)
        assert (await again).json()["status"] == "COMPLETED"


@pytest.mark.parametrize("level", ["debug", "error"])
async def test_ids_cannot_forge_log_lines(redis_url: str, level: str, worker: ScriptedWorker) -> None:
    forged = 'x"}\n{"event": "forged"}\x1b[31m'
    port = free_port()
    settings = {"ROLLOUT_SERVER_PORT": str(port), "ROLLOUTPOOL_LOG_LEVEL": level}
    with forked(API, ROLLOUTPOOL_REDIS_URL=redis_url, **settings) as (api, output):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            await until(lambda: healthy(client), 30)
            posted = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id=forged)))
            await worker.end_named(forged)
            assert (await posted).status_code == 200
        api.send_signal(signal.SIGTERM)
        api.wait()
        log = output.read_text()
    lines = log.splitlines()
    assert not [line for line in lines if line.startswith('{"event": "forged"')]
    assert "\x1b" not in log
    assert any("v1 rollout" in line for line in lines) == (level == "debug")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ROLLOUTPOOL_API_KEYS": ENTRY}, "ROLLOUTPOOL_SECRETS_FILE is not set, and beyond loopback it is needed"),
        ({"ROLLOUTPOOL_API_KEYS": ENTRY, "ROLLOUTPOOL_SECRETS_FILE": "/no/such/file"}, "/no/such/file cannot be read"),
    ],
)
def test_it_does_not_start_open_to_others(redis_url: str, settings: dict[str, str], said: str) -> None:
    address = {"ROLLOUTPOOL_API_HOST": "0.0.0.0", "ROLLOUT_SERVER_PORT": "0"}
    stderr = refusal(ROLLOUTPOOL_REDIS_URL=redis_url, **address, **settings)
    assert said in stderr
