"""Who may do what: keys, scopes, whose data it is, and who needs no key."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.support.api_requests import batch, v1_request
from tests.support.inside_api import Api, client_of, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import until

from rolloutpool_api.access import OPEN_PATHS
from rolloutpool_api.header_limit import MAX_HEAD_BYTES
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_common.store import Store

KEYS = {
    name: make_key(name.partition("-")[0], scopes)
    for name, scopes in {
        "ann": [KeyScope.SUBMIT, KeyScope.READ],
        "ann-2": [KeyScope.SUBMIT, KeyScope.READ],
        "ann-read": [KeyScope.READ],
        "bob": [KeyScope.SUBMIT, KeyScope.READ],
        "team-read": [KeyScope.READ],
        "team-submit": [KeyScope.SUBMIT],
        "team-metrics": [KeyScope.METRICS],
        "boss": [KeyScope.ADMIN],
    }.items()
}
ENTRIES = "\n".join(entry.entry() for _, entry in KEYS.values())
ELSEWHERE = {"api_host": "0.0.0.0", "api_keys_text": ENTRIES}
"""As an API that others reach is configured; the tests reach it on loopback all the same."""


def auth(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name][0]}"}


@pytest.fixture
async def locked(redis_url: str) -> AsyncIterator[Api]:
    async with running_api(redis_url, **ELSEWHERE) as running:
        yield running


@pytest.fixture
async def client(locked: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(locked) as made:
        yield made


async def submit(client: httpx.AsyncClient, name: str, **changes: Any) -> dict[str, Any]:
    key = changes.pop("key", None)
    headers = auth(name) | ({"Idempotency-Key": key} if key else {})
    response = await client.post("/v1/batches", json=batch(**changes), headers=headers)
    assert response.status_code in (200, 202), response.text
    accepted: dict[str, Any] = response.json()
    return accepted


async def test_no_route_is_open_by_oversight(locked: Api, client: httpx.AsyncClient) -> None:
    described = (await client.get("/openapi.json")).json()["paths"]
    calls = [(method, path) for path, methods in described.items() for method in methods]
    assert len(calls) > 10
    refused = {}
    for method, path in calls:
        response = await client.request(method, path.replace("{", "").replace("}", ""))
        refused[method, path] = response.status_code == 401
    assert {path for (_, path), no in refused.items() if not no} == OPEN_PATHS & set(described)
    for path in ("/", "/nothing", "/v1/batches/", "/health/", "/static/x"):
        assert (await client.get(path)).status_code == 401


async def test_every_route_says_in_its_description_that_it_wants_a_key(client: httpx.AsyncClient) -> None:
    described = (await client.get("/openapi.json")).json()["paths"]
    bare = {path for path, methods in described.items() for how in methods.values() if not how.get("security")}
    assert bare == OPEN_PATHS & set(described)


async def test_without_a_good_key_the_answer_is_401(client: httpx.AsyncClient) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEYS['boss'][0]}"},
        {"Authorization": KEYS["boss"][0]},
        {"Authorization": f"Bearer {KEYS['boss'][1].digest.hex()}"},
        {"Authorization": f"Bearer {KEYS['boss'][1].entry()}"},
        {"Authorization": "Bearer \u00e9\u00ff".encode("latin-1")},
    ]
    for header in cases:
        own = await client.get("/v1/workers", headers=header)
        assert own.status_code == 401, header
        assert list(own.json()) == ["error"]
        assert own.headers["www-authenticate"] == "Bearer"
        v1 = await client.post("/rollout", json=v1_request(), headers=header)
        assert (v1.status_code, list(v1.json())) == (401, ["detail"]), header


async def test_each_route_wants_its_scope(client: httpx.AsyncClient) -> None:
    ended = (await submit(client, "team-submit", count=1))["batch_id"]
    await client.delete(f"/v1/batches/{ended}", headers=auth("team-submit"))
    for method, path, needs in [
        ("POST", "/v1/batches", "submit"),
        ("GET", "/v1/batches/{b}", "read"),
        ("GET", "/v1/batches/{b}/results", "read"),
        ("GET", "/v1/batches/{b}/events", "read"),
        ("GET", "/v1/batches/{b}/groups", "read"),
        ("GET", "/v1/batches/{b}/rollouts", "read"),
        ("GET", "/v1/batches/{b}/group-statistics", "read"),
        ("GET", "/v1/rollouts/{b}-0/history", "read"),
        ("GET", "/v1/rollouts/{b}-0/annotations", "read"),
        ("POST", "/v1/batches/{b}/annotations", "submit"),
        ("POST", "/v1/batches/{b}/regrades", "submit"),
        ("POST", "/v1/rollouts/{b}-0/fork", "submit"),
        ("PUT", "/v1/runs/{b}/policy_version", "submit"),
        ("POST", "/v1/runs/{b}/pause", "submit"),
        ("POST", "/v1/runs/{b}/resume", "submit"),
        ("GET", "/v1/rollouts/{b}-0", "read"),
        ("DELETE", "/v1/rollouts/{b}-0", "submit"),
        ("DELETE", "/v1/batches/{b}", "submit"),
        ("DELETE", "/v1/batches/{b}?purge=true", "admin"),
        ("GET", "/v1/workers", "admin"),
        ("GET", "/v1/dead-letters", "admin"),
        ("POST", "/v1/dead-letters/{b}-0/requeue", "admin"),
        ("GET", "/v1/rollouts/{b}-0/evidence", "admin"),
        ("POST", "/v1/preflight", "submit"),
        ("GET", "/metrics", "metrics"),
    ]:
        for name in ("team-submit", "team-read", "team-metrics", "boss"):
            response = await client.request(method, path.format(b=ended), headers=auth(name))
            allowed = name in (f"team-{needs}", "boss")
            assert (response.status_code != 403) == allowed, (name, method, path)
            if not allowed:
                assert "lacks the scope" in response.json()["error"]["message"]


async def test_a_name_means_each_one_s_own_rollout(client: httpx.AsyncClient) -> None:
    named = [{"messages": [{"role": "user", "content": "x"}], "rollout_id": "same"}]
    for name in ("ann", "bob"):
        (uid,) = (await submit(client, name, rollouts=named))["rollouts"]
        assert (await client.get("/v1/rollouts/same", headers=auth(name))).json()["uid"] == uid
    assert (await client.get("/v1/rollouts/same", headers=auth("boss"))).status_code == 404
    assert (await client.delete(f"/v1/rollouts/{uid}", headers=auth("boss"))).json()["status"] == "cancelled"


async def test_on_every_route_what_is_others_looks_like_what_is_missing(locked: Api, client: httpx.AsyncClient) -> None:
    mine = (await submit(client, "ann", run="steps", count=1))["batch_id"]
    await client.put("/v1/runs/steps/policy_version", json={"policy_version": 3}, headers=auth("ann"))
    # So that a stream of its events ends.
    await client.delete(f"/v1/batches/{mine}", headers=auth("ann"))
    described = (await client.get("/openapi.json")).json()["paths"]
    bodies = {
        "/v1/batches/{batch_id}/annotations": {"items": [{"rollout": 0, "scalars": {"reward": 1.0}}]},
        "/v1/batches/{batch_id}/regrades": {"grader": {"name": "judge"}},
        "/v1/rollouts/{rollout_id}/fork": {"turn": 1, "trainer": {"server_urls": ["http://127.0.0.1:9"]}},
        "/v1/runs/{run}/policy_version": {"policy_version": 1},
    }
    assert set(bodies) <= set(described)

    async def ask(name: str, method: str, path: str, batch_id: str, run: str) -> httpx.Response:
        uid = f"{batch_id}-0"
        of = {"batch_id": batch_id, "uid": uid, "rollout_id": uid, "run": run, "regrade_id": "g", "part": "x"}
        url = path.format(**of, tokenizer_sha256="0" * 64)
        return await client.request(method, url, json=bodies.get(path), headers=auth(name))

    calls = [(method.upper(), path) for path, methods in described.items() if "{" in path for method in methods]
    reads = [path for method, path in calls if method == "GET"]
    found = [path for path in reads if (await ask("ann", "GET", path, mine, "steps")).is_success]
    assert len(found) >= 9
    unknown = (f"{mine}-7", f"{mine}-10", mine, "x", "b-1-2", "%00")
    for path in found:
        assert (await ask("ann-read", "GET", path, mine, "steps")).is_success, path
        # A run is its owner's alone; all else an administrator reads too.
        assert (await ask("boss", "GET", path, mine, "steps")).is_success is not path.startswith("/v1/runs/"), path
        for name in unknown if path.startswith("/v1/rollouts/") else ():
            url = path.format(rollout_id=name, uid=name, part="x")
            assert (await client.get(url, headers=auth("ann"))).status_code == 404, url
    missing, unnamed = "b" + "0" * 32, "others"
    for method, path in calls:
        foreign = await ask("bob", method, path, mine, "steps")
        nothing = await ask("bob", method, path, missing, unnamed)
        assert foreign.status_code == nothing.status_code, (method, path)
        if not path.startswith("/v1/runs/"):
            assert foreign.status_code in (403, 404, 422), (method, path)
            assert foreign.text.replace(mine, missing) == nothing.text, (method, path)
    # A run of the same name is another one.
    run = (await client.get("/v1/runs/steps", headers=auth("ann"))).json()
    assert (run["policy_version"], run["paused_at"]) == (3, None)


async def test_idempotency_keys_are_each_ones_own(client: httpx.AsyncClient) -> None:
    first = await submit(client, "ann", key="step-1")
    assert (await submit(client, "bob", key="step-1"))["batch_id"] != first["batch_id"]
    assert (await submit(client, "ann", key="step-1")) == first


async def test_a_second_key_of_a_name_replaces_the_first(client: httpx.AsyncClient) -> None:
    accepted = await submit(client, "ann")
    assert (await client.get(f"/v1/batches/{accepted['batch_id']}", headers=auth("ann-2"))).status_code == 200


async def test_v1_is_closed_elsewhere_and_open_to_listed_networks(redis_url: str, worker: ScriptedWorker) -> None:
    async with running_api(redis_url, **ELSEWHERE) as api, client_of(api) as client:
        forged = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Real-IP": "10.1.2.3"}
        assert (await client.get("/tools")).status_code == 401
        assert (await client.get("/tools", headers=auth("team-submit"))).status_code == 200
    async with (
        running_api(redis_url, **ELSEWHERE, v1_networks="10.0.0.0/8,fd00::/8") as api,
        client_of(api) as client,
    ):
        assert (await client.get("/tools", headers=forged)).status_code == 401
        assert (await client.post("/rollout", json=v1_request(), headers=forged)).status_code == 401
    async with (
        running_api(redis_url, **ELSEWHERE, v1_networks="127.0.0.1") as api,
        client_of(api) as client,
    ):
        assert (await client.get("/tools")).status_code == 200
        posted = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="guest")))
        await worker.end_named("guest")
        assert (await posted).json()["status"] == "COMPLETED"
        # Only these two.
        assert (await client.get("/v1/rollouts/guest")).status_code == 401
        assert (await client.get("/v1/rollouts/guest", headers=auth("ann"))).status_code == 404
        assert (await client.get("/v1/rollouts/guest", headers=auth("boss"))).status_code == 200
        # A page that somebody in that network has open is not that somebody.
        assert (await client.get("/tools", headers={"Origin": "http://evil.example"})).status_code == 403


async def test_v1_with_a_key_is_its_owners(client: httpx.AsyncClient, store: Store, worker: ScriptedWorker) -> None:
    posted = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="mine"), headers=auth("ann")))
    await worker.end(await until(lambda: store.rollouts.find("mine", "ann")))
    assert (await posted).json()["status"] == "COMPLETED"
    assert (await client.get("/v1/rollouts/mine", headers=auth("ann"))).status_code == 200
    assert (await client.get("/v1/rollouts/mine", headers=auth("bob"))).status_code == 404


async def test_keys_on_loopback_close_all_but_v1(redis_url: str, worker: ScriptedWorker) -> None:
    async with running_api(redis_url, api_keys_text=ENTRIES) as api, client_of(api) as client:
        assert (await client.get("/tools")).status_code == 200
        assert (await client.get("/v1/workers")).status_code == 401
        assert (await client.get("/v1/workers", headers=auth("boss"))).status_code == 200


async def test_without_keys_only_this_machines_own_names_are_answered_to(redis_url: str) -> None:
    async with running_api(redis_url) as api, client_of(api) as client:
        for host in ["evil.example", "127.0.0.1.evil.example", "169.254.1.1", "", "[::1"]:
            refused = await client.get("/v1/workers", headers={"Host": host})
            assert refused.status_code == 403
            assert "localhost" in refused.json()["error"]["message"]
        for own in ("localhost", "127.0.0.1:1", "[::1]:9000"):
            assert (await client.get("/v1/workers", headers={"Host": own})).status_code == 200


async def test_without_keys_no_page_of_another_site_gets_in(redis_url: str) -> None:
    async with running_api(redis_url) as api, client_of(api) as client:
        own = api.url.removeprefix("http://")
        for origin in ("http://evil.example", "null", f"http://{own}.evil.example", "http://localhost:1"):
            assert (await client.post("/v1/batches", json=batch(), headers={"Origin": origin})).status_code == 403
        assert (await client.post("/v1/batches", json=batch(), headers={"Origin": f"http://{own}"})).status_code == 202


async def raw(api: Api, data: bytes, *, more: bytes = b"") -> bytes:
    """The status line that comes back for these bytes; `more` is sent again and again until one does."""
    port = int(api.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(30):
            writer.write(data)
            answer = asyncio.create_task(reader.readuntil(b"\r\n"))
            with contextlib.suppress(ConnectionError):
                while more and not answer.done():
                    writer.write(more)
                    await writer.drain()
            return await answer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_nobodys_body_is_read(locked: Api) -> None:
    head = b"POST /v1/batches HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200000000\r\n\r\n"
    assert (await raw(locked, head)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("data", "more"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2 * MAX_HEAD_BYTES + b"\r\n\r\n", b""),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", b"a" * 10_000),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X: a\r\n" * 1000),
        (b"GET /", b"a" * 10_000),
    ],
    ids=["at once", "one header", "many headers", "path"],
)
async def test_a_head_without_end_is_ended(locked: Api, data: bytes, more: bytes) -> None:
    assert (await raw(locked, data, more=more)).startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


async def test_a_long_head_within_the_limit_is_read(locked: Api) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
    assert (await raw(locked, head)).startswith(b"HTTP/1.1 200 ")


async def test_an_upgrade_is_no_way_past_the_gate(locked: Api) -> None:
    head = (
        b"GET /v1/workers HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    port = int(locked.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        await asyncio.get_running_loop().run_in_executor(None, connection.sendall, head)
        answer = await asyncio.get_running_loop().run_in_executor(None, connection.recv, 4096)
    assert answer.startswith(b"HTTP/1.1 401 ")
