"""Regrades at the API: what is refused, whose they are, and that asking has a worker told."""

from typing import Any

import httpx
from redis.asyncio import Redis
from tests.support.api_callers import auth, shared_api, submit
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.capabilities.grading.regrades import Regrades
from rolloutpool_common.store import Store


def request(**fields: Any) -> dict[str, Any]:
    return {"grader": {"name": "exact"}, **fields}


async def submitted(client: httpx.AsyncClient, count: int = 2, headers: dict[str, str] | None = None) -> str:
    (uid, *_) = await submit(client, count, **(headers or {}))
    return f"/v1/batches/{uid.partition('-')[0]}/regrades"


async def test_a_request_is_kept_once_and_a_worker_is_told(raw: Redis, store: Store, client: httpx.AsyncClient) -> None:
    url = await submitted(client, 3)
    first = await client.post(url, json=request(rollouts=[2, 0, 2]), headers={"Idempotency-Key": "k"})
    assert first.status_code == 202, first.text
    document = first.json()
    assert (document["state"], document["total"], document["annotation"]) == ("running", 2, "reward")
    again = await client.post(url, json=request(rollouts=[2, 0, 2]), headers={"Idempotency-Key": "k"})
    assert again.json()["regrade_id"] == document["regrade_id"]
    # Another body is another request, also under the same key.
    other = await client.post(url, json=request(annotation="other"), headers={"Idempotency-Key": "k"})
    assert (other.json()["total"], other.json()["annotation"]) == (3, "other")
    found = await client.get(f"{url}/{document['regrade_id']}")
    assert found.json() == document
    known = await Regrades(store).read(document["regrade_id"])
    assert known is not None
    assert known[0].indexes == [0, 2]
    # One message for each, although three calls asked about the first one.
    messages = await raw.lrange("rollouts:rollouts.default", 0, -1)
    assert sum(b"rolloutpool.regrade" in message for message in messages) == 2


async def test_memory_of_open_rollouts_is_not_taken(raw: Redis, client: httpx.AsyncClient) -> None:
    """As of annotations, which the grades become. What was begun before goes on."""
    url = await submitted(client, 41)
    begun = await client.post(url, json=request(), headers={"Idempotency-Key": "k"})
    await raw.config_set("maxmemory", int((await raw.info("memory"))["used_memory"]) + 1_600_000 + 16 * 2**20)
    assert (await client.post(url, json=request())).status_code == 503
    again = await client.post(url, json=request(), headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["regrade_id"]) == (202, begun.json()["regrade_id"])


async def test_what_is_wrong_is_refused_with_its_place(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    url = await submitted(client)
    await worker.announce(graders=["exact"])
    for body, at in (
        ({"grader": {"name": "other"}}, "grader.name"),
        (request(rollouts=[0, 7]), "items[1].rollout"),
        (request(rollouts=["nobody-0"]), "items[0].rollout"),
    ):
        answer = await client.post(url, json=body)
        assert answer.status_code == 422, answer.text
        assert at in answer.text
    bodies: list[dict[str, Any]] = [
        {},
        request(rollouts=[]),
        request(annotation="no name"),
        request(grader={"name": ""}),
        request(more=1),
        {"grader": {"name": "exact", "deadline_seconds": 0}},
    ]
    for body in bodies:
        assert (await client.post(url, json=body)).status_code == 422, body
    assert (await client.get(f"{url}/unknown")).status_code == 404


async def test_a_regrade_is_its_owners(redis_url: str) -> None:
    async with shared_api(redis_url) as client:
        url = await submitted(client, headers=auth("ann"))
        mine = (await client.post(url, json=request(), headers=auth("ann"))).json()["regrade_id"]
        # It cannot be read by way of a batch of another one's own.
        his = await submitted(client, headers=auth("bob"))
        assert (await client.get(f"{his}/{mine}", headers=auth("bob"))).status_code == 404
        assert (await client.get(f"{url}/{mine}", headers=auth("ann"))).status_code == 200
