"""The batch API over HTTP: submit, replay, read by page and long-poll, cancel, purge."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from tests.support.api_requests import batch
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import until

from rolloutpool_api import results
from rolloutpool_api.services import ApiServices
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import BatchAccepted, BatchStatus
from rolloutpool_common.protocol.result import ResultItem, ResultPage
from rolloutpool_common.store import Store


async def submit(client: httpx.AsyncClient, document: dict[str, Any], **headers: str) -> BatchAccepted:
    response = await client.post("/v1/batches", json=document, headers=headers)
    assert response.status_code == 202, response.text
    return BatchAccepted.model_validate_json(response.content)


async def test_a_batch_is_accepted_with_its_uids(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/batches", json=batch(3, labels={"run": "7"}, priority="low"))
    assert response.status_code == 202
    accepted = BatchAccepted.model_validate_json(response.content)
    assert response.headers["location"] == f"/v1/batches/{accepted.batch_id}"
    assert accepted.rollouts == [f"{accepted.batch_id}-{i}" for i in range(3)]
    status = BatchStatus.model_validate_json((await client.get(response.headers["location"])).content)
    assert (status.state, status.total, status.progress) == ("running", 3, 0.0)
    assert status.counts[RolloutStatus.QUEUED] == 3
    assert status.labels == {"run": "7"}
    assert status.priority == "low"


async def test_the_worker_gets_the_merged_spec(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    document = batch(1)
    document["defaults"] |= {"sampling_params": {"temperature": 0.5, "top_k": 3}, "metadata": {"a": 1}, "max_turns": 4}
    document["rollouts"][0] |= {
        "sampling_params": {"temperature": 0.7, "seed": 9},
        "metadata": {"b": 2},
        "rollout_id": "mine",
        "deadline_seconds": 1000,
        "labels": {"kind": "x"},
    }
    accepted = await submit(client, document)
    claim = await worker.claim(accepted.rollouts[0])
    spec = claim.spec
    assert spec.rollout_id == "mine"
    assert spec.sampling_params.temperature == 0.7
    assert spec.sampling_params.extra() == {"top_k": 3, "seed": 9}
    assert spec.metadata == {"a": 1, "b": 2}
    assert (spec.max_turns, spec.v1, spec.labels) == (4, False, {"kind": "x"})
    assert claim.deadline_in_s == pytest.approx(1000, abs=30)


async def test_replay_and_conflict(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/batches", json=batch(), headers={"Idempotency-Key": "k1"})
    again = await client.post("/v1/batches", json=dict(reversed(batch().items())), headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    other = await client.post("/v1/batches", json=batch(3), headers={"Idempotency-Key": "k1"})
    assert other.status_code == 409
    assert other.json()["error"]["batch_id"] == first.json()["batch_id"]
    assert (await client.post("/v1/batches", json=batch(3), headers={"Idempotency-Key": "k2"})).status_code == 202


async def test_pages_by_cursor(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    accepted = await submit(client, batch(5))
    url = f"/v1/batches/{accepted.batch_id}/results"
    ended = [await worker.end(accepted.rollouts[i]) for i in (3, 0, 4)]
    page = ResultPage.model_validate_json((await client.get(url, params={"limit": 2})).content)
    assert [item.result for item in page.items] == ended[:2]
    assert (page.complete, page.next_cursor) == (False, page.items[-1].cursor)
    rest = ResultPage.model_validate_json((await client.get(url, params={"cursor": page.items[0].cursor})).content)
    assert [item.result for item in rest.items] == ended[1:]
    empty = ResultPage.model_validate_json((await client.get(url, params={"cursor": rest.next_cursor})).content)
    assert (empty.items, empty.next_cursor, empty.complete) == ([], rest.next_cursor, False)
    await worker.end(accepted.rollouts[1])
    await worker.end(accepted.rollouts[2])
    last = ResultPage.model_validate_json((await client.get(url, params={"cursor": rest.next_cursor})).content)
    assert (len(last.items), last.complete) == (2, True)


async def test_a_page_joins_what_the_store_reads_in_pieces(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    accepted = await submit(client, batch(230))
    await client.delete(f"/v1/batches/{accepted.batch_id}")
    url = f"/v1/batches/{accepted.batch_id}/results"
    page = ResultPage.model_validate_json((await client.get(url, params={"limit": 220})).content)
    assert len({item.result.uid for item in page.items}) == 220
    rest = ResultPage.model_validate_json((await client.get(url, params={"cursor": page.next_cursor})).content)
    assert (len(rest.items), rest.complete) == (10, True)


async def test_ndjson(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    ways: list[dict[str, Any]] = [{"params": {"format": "ndjson"}}, {"headers": {"Accept": "application/x-ndjson"}}]
    for asked in ways:
        accepted = await submit(client, batch(2))
        ended = [await worker.end(uid) for uid in accepted.rollouts]
        response = await client.get(f"/v1/batches/{accepted.batch_id}/results", **asked)
        assert response.headers["content-type"] == "application/x-ndjson"
        items = [ResultItem.model_validate_json(line) for line in response.content.splitlines()]
        assert [item.result for item in items] == ended
        assert response.headers["x-next-cursor"] == items[-1].cursor
        assert response.headers["x-batch-complete"] == "true"


async def test_format_wins_over_accept(client: httpx.AsyncClient) -> None:
    accepted = await submit(client, batch())
    url = f"/v1/batches/{accepted.batch_id}/results"
    response = await client.get(url, params={"format": "json"}, headers={"Accept": "application/x-ndjson"})
    assert response.json() == {"items": [], "next_cursor": "0", "complete": False}


async def test_a_long_poll_ends_with_the_first_result(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    accepted = await submit(client, batch(2))
    waiting = asyncio.create_task(client.get(f"/v1/batches/{accepted.batch_id}/results", params={"wait": 50}))
    await client.get("/health")
    assert not waiting.done()
    ended = await worker.end(accepted.rollouts[1])
    async with asyncio.timeout(20):
        page = ResultPage.model_validate_json((await waiting).content)
    assert [item.result for item in page.items] == [ended]


async def test_results_that_come_together_are_read_together(
    client: httpx.AsyncClient, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingers, goes_on = asyncio.Event(), asyncio.Event()

    async def pause(_: ApiServices, seconds: float) -> None:
        assert seconds == results.LINGER
        lingers.set()
        await goes_on.wait()

    monkeypatch.setattr(ApiServices, "pause", pause)
    accepted = await submit(client, batch(3))
    uids = accepted.rollouts
    path = f"/v1/batches/{accepted.batch_id}/results"
    await worker.end(uids[0])
    reading = asyncio.create_task(client.get(path, params={"wait": 50}))
    # The first result is read, and the answer waits for more.
    await lingers.wait()
    await worker.end(uids[1])
    goes_on.set()
    page = (await reading).json()
    assert [item["result"]["uid"] for item in page["items"]] == uids[:2]
    # Who does not wait is given what there is.
    assert len((await client.get(path)).json()["items"]) == 2


async def test_a_long_poll_ends_with_its_time(client: httpx.AsyncClient) -> None:
    accepted = await submit(client, batch())
    page = (await client.get(f"/v1/batches/{accepted.batch_id}/results", params={"wait": 0.05})).json()
    assert page == {"items": [], "next_cursor": "0", "complete": False}


async def test_cancel_keeps_what_had_ended(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    accepted = await submit(client, batch(3))
    await worker.end(accepted.rollouts[0])
    url = f"/v1/batches/{accepted.batch_id}"
    assert (await client.delete(url)).json() == {"batch_id": accepted.batch_id, "cancelled": 2}
    status = (await client.get(url)).json()
    assert (status["state"], status["cancelled"]) == ("complete", True)
    assert (status["counts"]["completed"], status["counts"]["cancelled"]) == (1, 2)
    assert (await client.delete(url)).json()["cancelled"] == 0


async def test_purge_needs_an_ended_batch(client: httpx.AsyncClient) -> None:
    accepted = await submit(client, batch())
    url = f"/v1/batches/{accepted.batch_id}"
    refused = await client.delete(url, params={"purge": True})
    assert refused.status_code == 409
    assert "cancel it first" in refused.json()["error"]["message"]
    await client.delete(url)
    assert (await client.delete(url, params={"purge": True})).json() == {"batch_id": accepted.batch_id, "purged": True}
    for gone in (url, f"{url}/results", f"{url}/events", f"/v1/rollouts/{accepted.rollouts[0]}"):
        assert (await client.get(gone)).status_code == 404


async def test_an_ended_batch_is_kept_for_the_retention_and_no_longer(redis_url: str) -> None:
    async with (
        running_api(redis_url, retention_hours=1e-6) as api,
        running_api(redis_url) as patient,
        client_of(api) as client,
        client_of(patient) as other,
    ):
        ended, running = await submit(client, batch(), **{"Idempotency-Key": "k"}), await submit(client, batch())
        kept = await submit(other, batch())
        for url in (f"/v1/batches/{ended.batch_id}", f"/v1/batches/{kept.batch_id}"):
            await client.delete(url)

        async def gone() -> bool:
            return (await other.get(f"/v1/batches/{ended.batch_id}")).status_code == 404

        await until(gone, 30)
        for left in (running, kept):
            assert (await client.get(f"/v1/batches/{left.batch_id}")).status_code == 200
        # The key went with it.
        assert (await submit(client, batch(), **{"Idempotency-Key": "k"})).batch_id != ended.batch_id


async def test_unknown_batches(client: httpx.AsyncClient) -> None:
    for name in ("b" + "0" * 32, "x", "%00", "b0%0a"):
        response = await client.get(f"/v1/batches/{name}")
        assert response.status_code == 404
        assert "is unknown" in response.json()["error"]["message"]


async def test_bad_cursors(client: httpx.AsyncClient) -> None:
    url = f"/v1/batches/{(await submit(client, batch())).batch_id}"
    for cursor in ["", "0-0-0"]:
        for response in (
            await client.get(f"{url}/results", params={"cursor": cursor}),
            await client.get(f"{url}/events", headers={"Last-Event-ID": cursor}),
        ):
            assert response.status_code == 400
            assert "pass `0` for the start" in response.json()["error"]["message"]


async def test_bad_queries_are_faults(client: httpx.AsyncClient) -> None:
    accepted = await submit(client, batch())
    for query in ["limit=0", "limit=1001", "limit=x", "wait=61", "wait=-1", "wait=nan", "format=xml"]:
        response = await client.get(f"/v1/batches/{accepted.batch_id}/results?{query}")
        assert response.status_code == 422
        error = response.json()["error"]
        assert (error["total_faults"], error["faults"][0]["path"]) == (1, f"query.{query.partition('=')[0]}")


async def test_ten_thousand_rollouts(client: httpx.AsyncClient) -> None:
    accepted = await submit(client, batch(10_000))
    assert len(accepted.rollouts) == 10_000
    too_many = await client.post("/v1/batches", json=batch(10_001))
    assert too_many.json()["error"]["faults"] == [
        {"path": "rollouts", "message": "has 10001 rollouts, at most 10000; send several batches"}
    ]


async def test_a_body_beyond_the_limit(redis_url: str) -> None:
    async with running_api(redis_url, max_body_mb=1) as api, client_of(api) as client:
        large = orjson.dumps(batch(1, labels={"x": "y" * 1_000_000}))

        async def pieces() -> Any:
            for start in range(0, len(large), 65536):
                yield large[start : start + 65536]

        headers = {"content-type": "application/json"}
        for path, key in (("/v1/batches", "error"), ("/rollout", "detail")):
            for content in (large, pieces()):
                response = await client.post(path, content=content, headers=headers)
                assert response.status_code == 413
                said = response.json()[key]
                assert "ROLLOUTPOOL_MAX_BODY_MB" in (said["message"] if key == "error" else said)
        await submit(client, batch(1))


async def test_a_replay_is_not_measured_by_todays_workers(client: httpx.AsyncClient, store: Store) -> None:
    """Accepted while no worker lived that could know the tools; later the same request is the same batch."""
    document = batch(1)
    document["defaults"]["tools"] = ["telescope"]
    accepted = await submit(client, document, **{"Idempotency-Key": "k"})
    await ScriptedWorker(store).announce()
    again = await client.post("/v1/batches", json=document, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["batch_id"]) == (200, accepted.batch_id)
    assert (await client.post("/v1/batches", json=document)).status_code == 422
