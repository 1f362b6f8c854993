"""An API inside the test's own process: a real socket and a real Redis, and a test can look at its settings."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI
from tests.support.secrets import secrets_file
from tests.support.waiting import until_true

from rolloutpool_api.__main__ import ApiServer
from rolloutpool_api.app import create_app
from rolloutpool_api.settings import ApiSettings

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""httpx would read all authorities of the machine for each client, which takes longer than most tests here."""


class PromptServer(ApiServer):
    """Ends as soon as it is told to; uvicorn looks ten times a second whether it was."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app)
        self.told = asyncio.Event()

    async def main_loop(self) -> None:
        """Does each tenth of a second what uvicorn does."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self.told.wait()


@dataclass
class Api:
    """A running API process' inside."""

    server: PromptServer
    serving: asyncio.Task[None]
    url: str
    settings: ApiSettings

    async def stop(self) -> None:
        """As SIGTERM does."""
        self.server.should_exit = True
        self.server.told.set()
        await self.serving


@contextlib.asynccontextmanager
async def running_api(redis_url: str, **settings: Any) -> AsyncIterator[Api]:
    """The API on a free port, which keeps secrets and lets any host be called."""
    usual = {"allowed_targets": "*,0.0.0.0/0,::/0", "secrets_file": secrets_file()}
    configured = ApiSettings(redis_url=redis_url, **{**usual, **settings})
    listener = socket.create_server(("127.0.0.1", 0))
    server = PromptServer(create_app(configured))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    api = Api(server, serving, f"http://127.0.0.1:{listener.getsockname()[1]}", configured)
    try:
        await until_true(lambda: server.started)
        yield api
    finally:
        await api.stop()


@contextlib.asynccontextmanager
async def client_of(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a generous time-out: what is slow here is the machine."""
    async with httpx.AsyncClient(base_url=api.url, timeout=60, trust_env=False, verify=NO_TLS) as client:
        yield client
