"""Keys that are added, revoked and expire while an API runs, also under requests that wait."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs
from tests.support.api_requests import batch
from tests.support.inside_api import Api, client_of, running_api
from tests.support.waiting import until

from rolloutpool_common.security.api_keys import ApiKey, KeyScope, make_key

BOTH = [KeyScope.SUBMIT, KeyScope.READ]
(ANN, ann), (BOB, bob) = make_key("ann", BOTH), make_key("bob", BOTH)
LONG_AGO = 1_000_000_000.0


def write(path: Path, *entries: ApiKey) -> None:
    """Replaces the keys' file by one that was written long ago, so that it is read at the next look."""
    new = path.with_suffix(".new")
    new.write_text("\n".join(entry.entry() for entry in entries))
    os.utime(new, (LONG_AGO, LONG_AGO))
    new.rename(path)


def auth(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    write(path, ann)
    return path


@pytest.fixture
async def api(redis_url: str, keys: Path) -> AsyncIterator[Api]:
    async with running_api(redis_url, api_host="0.0.0.0", api_keys_file=keys) as running:
        yield running


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(api) as made:
        yield made


async def test_a_key_is_added_and_another_revoked(client: httpx.AsyncClient, keys: Path) -> None:
    async def may(key: str) -> bool:
        return (await client.get("/v1/batches", headers=auth(key))).status_code == 200

    assert (await may(ANN), await may(BOB)) == (True, False)
    write(keys, bob)
    await until(lambda: may(BOB))
    refused = await client.get("/v1/batches", headers=auth(ANN))
    assert refused.status_code == 401
    assert "was revoked" in refused.json()["error"]["message"]


async def test_what_waits_with_a_revoked_key_ends(client: httpx.AsyncClient, api: Api, keys: Path) -> None:
    accepted = (await client.post("/v1/batches", json=batch(), headers=auth(ANN))).json()
    at = f"/v1/batches/{accepted['batch_id']}"
    waiting = asyncio.create_task(client.get(f"{at}/results?wait=60", headers=auth(ANN)))
    async with client.stream("GET", f"{at}/events", headers=auth(ANN), timeout=60) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: progress"
        write(keys, bob)

        async def revoked() -> bool:
            return (await client.get(at, headers=auth(ANN))).status_code == 401

        await until(revoked)
        # The next round of both: something has changed in the batch.
        store = api.server.config.app.state.services.store  # type: ignore[union-attr]
        await store.batches.cancel(accepted["batch_id"])
        assert [line async for line in lines if line.startswith("event:")] == []
    answered = await waiting
    assert answered.status_code == 401
    assert "was revoked" in answered.text


async def test_a_key_ends_at_its_time_and_is_told_so(redis_url: str) -> None:
    key, entry = make_key("ann", BOTH, expires=datetime.now(UTC) - timedelta(seconds=1))
    later, good = make_key("ann", BOTH, expires=datetime.now(UTC) + timedelta(hours=1))
    entries = f"{entry.entry()},{good.entry()}"
    async with running_api(redis_url, api_keys_text=entries) as api, client_of(api) as client:
        refused = await client.get("/v1/batches", headers=auth(key))
        assert refused.status_code == 401
        assert "this key of 'ann' has expired" in refused.json()["error"]["message"]
        assert (await client.get("/livez", headers=auth(key))).status_code == 200
        assert (await client.get("/v1/batches", headers=auth(later))).status_code == 200


async def test_what_an_admin_does_is_in_the_log(redis_url: str) -> None:
    key, entry = make_key("boss", [KeyScope.ADMIN])
    async with running_api(redis_url, api_keys_text=entry.entry()) as api, client_of(api) as client:
        at = (await client.post("/v1/batches", json=batch(), headers=auth(key))).headers["location"]
        with capture_logs() as logs:
            for query in ("?purge=true", "", "?purge=true"):
                await client.delete(f"{at}{query}", headers=auth(key))
            await client.put("/v1/runs/r/pause", headers=auth(key))
            await client.post("/v1/runs/r/pause", headers=auth(key))
        acts = [(one["action"], one["outcome"], one["target"]) for one in logs if one["event"] == "admin_action"]
    batch_id = at.rpartition("/")[2]
    assert acts[:3] == [
        ("purge_batch", "refused", {"batch_id": batch_id}),
        ("cancel_batch", "ok", {"batch_id": batch_id}),
        ("purge_batch", "ok", {"batch_id": batch_id}),
    ]
    assert ("pause", "ok", {"run": "r"}) in acts[3:]
