"""An API that several people use, each with a key of their own."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from tests.support.api_requests import batch
from tests.support.inside_api import client_of, running_api

from rolloutpool_common.security.api_keys import KeyScope, make_key

_KEYS = {
    name: make_key(name.partition("-")[0], scopes)
    for name, scopes in {
        "ann": [KeyScope.SUBMIT, KeyScope.READ],
        "ann-read": [KeyScope.READ],
        "bob": [KeyScope.SUBMIT, KeyScope.READ],
        "boss": [KeyScope.ADMIN],
    }.items()
}


def auth(name: str) -> dict[str, str]:
    """The headers of a request by `ann`, `ann-read` (the same owner, who may only read), `bob` or `boss` (admin)."""
    return {"Authorization": f"Bearer {_KEYS[name][0]}"}


@contextlib.asynccontextmanager
async def shared_api(redis_url: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API with these keys, which sends none by itself."""
    entries = "\n".join(entry.entry() for _, entry in _KEYS.values())
    async with running_api(redis_url, api_keys_text=entries, **settings) as api, client_of(api) as client:
        yield client


async def submit(client: httpx.AsyncClient, document: dict[str, Any] | int = 1, **headers: str) -> list[str]:
    """Submits a batch, or so many plain rollouts, which must be accepted; returns the uids."""
    body = batch(document) if isinstance(document, int) else document
    response = await client.post("/v1/batches", json=body, headers=headers)
    assert response.status_code == 202, response.text
    uids: list[str] = response.json()["rollouts"]
    return uids
