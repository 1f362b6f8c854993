"""`DELETE /v1/rollouts/{rollout_id}`, also before its rollout has come."""

import httpx
from tests.support.api_requests import batch, v1_request
from tests.support.scripted_worker import ScriptedWorker

UNKNOWN_UID = f"b{'0' * 32}-0"


def named(*names: str) -> dict[str, object]:
    messages = [{"role": "user", "content": "Calculate 5 + 3"}]
    return batch(rollouts=[{"rollout_id": name, "messages": messages} for name in names])


async def test_a_cancel_before_its_submit(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    for _ in range(2):
        early = await client.delete("/v1/rollouts/a/b")
        assert (early.status_code, early.json()) == (202, {"uid": None, "status": "cancelled"})
    assert (await client.get("/v1/rollouts/a/b")).status_code == 404
    accepted = await client.post("/v1/batches", json=named("a/b", "c"))
    assert accepted.status_code == 202
    precancelled, other = accepted.json()["rollouts"]
    await worker.end(other)
    page = (await client.get(f"/v1/batches/{accepted.json()['batch_id']}/results")).json()
    assert page["complete"]
    assert {item["result"]["uid"]: item["result"]["status"] for item in page["items"]} == {
        precancelled: "cancelled",
        other: "completed",
    }
    late = await client.delete("/v1/rollouts/a/b")
    assert (late.status_code, late.json()) == (200, {"uid": precancelled, "status": "cancelled"})


async def test_a_synchronous_rollout_is_cancelled_too(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    request = v1_request()
    assert (await client.delete(f"/v1/rollouts/{request['rollout_id']}")).status_code == 202
    answer = await client.post("/rollout", json=request)
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["error_message"]) == ("ERROR", "Rollout cancelled")


async def test_what_no_caller_can_submit_is_unknown(client: httpx.AsyncClient) -> None:
    for name in [UNKNOWN_UID, UNKNOWN_UID[:-2], "%20", "x" * 257]:
        assert (await client.delete(f"/v1/rollouts/{name}")).status_code == 404
