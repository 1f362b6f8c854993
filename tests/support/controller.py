"""Requests of a controller of the Osmosis wire, as a test makes them."""

from typing import Any

import httpx
from tests.support.scripted_worker import OWNER

from rolloutpool_common.capabilities.osmosis.request import LEASE_HEADER
from rolloutpool_common.store import Store


def request(name: str = "run7-row3-0", **changes: Any) -> dict[str, Any]:
    """A valid request; a change to `...` takes the field out."""
    fields = {
        "rollout_id": name,
        "initial_messages": [{"role": "user", "content": "q"}],
        "chat_completions_url": "http://127.0.0.1:8081/v1/rollouts/x",
        "grade": False,
        **changes,
    }
    return {key: value for key, value in fields.items() if value is not ...}


async def accepted(client: httpx.AsyncClient, name: str = "run7-row3-0", **changes: Any) -> str:
    """Submits a rollout; returns the token of its lease."""
    answer = await client.post("/rollout", json=request(name, **changes))
    assert answer.status_code == 202, answer.text
    token: str = answer.json()["polling_lease_token"]
    return token


async def poll(client: httpx.AsyncClient, token: str, name: str = "run7-row3-0", **more: Any) -> httpx.Response:
    """Asks for the result once."""
    return await client.get(f"/rollout/{name}/result", headers={LEASE_HEADER: token, **more.pop("headers", {})})


async def uid_of(store: Store, name: str = "run7-row3-0") -> str:
    """Finds a rollout that was submitted without a key."""
    uid = await store.rollouts.find(name, OWNER)
    assert uid is not None
    return uid
