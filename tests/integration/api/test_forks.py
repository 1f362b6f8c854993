"""`POST /v1/rollouts/{id}/fork` over HTTP: who may, what is answered, and what the batch keeps."""

from typing import Any

import httpx
from tests.support.api_callers import submit
from tests.support.finished_rollouts import rollout, sample, turn
from tests.support.journals import observation_record, turn_record
from tests.support.kept_journals import carrying
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Store

URL = "http://127.0.0.1:8081"
MESSAGES = [Message(role=role, content=role) for role in ("user", "assistant", "user", "assistant")]


async def ended(client: httpx.AsyncClient, worker: ScriptedWorker) -> RolloutResult:
    (uid,) = await submit(client)
    fields: dict[str, Any] = {
        "samples": [sample("ask", ("sampled", "ab", 1), ("glue", "-", 1), ("sampled", "cd", 2))],
        "turns": [turn(1), turn(2)],
        "messages": MESSAGES,
    }
    records: list[JournalRecord] = [turn_record("a"), observation_record("and?"), turn_record("b")]
    carried = carrying(rollout(**fields), records, [MESSAGES[0].wire()], options={"tokenizer_name": "rolloutpool/tiny"})
    return await worker.end(uid, **fields, replay=carried.replay)


async def fork(client: httpx.AsyncClient, name: str, document: dict[str, Any], **headers: str) -> httpx.Response:
    return await client.post(f"/v1/rollouts/{name}/fork", json=document, headers=headers)


async def test_forks_are_a_batch_that_keeps_the_parent_s_result(
    client: httpx.AsyncClient, store: Store, worker: ScriptedWorker
) -> None:
    parent = await ended(client, worker)
    answer = await fork(client, parent.uid, {"turn": 2, "n": 3, "server_url": URL, "labels": {"tree": "1"}})
    assert answer.status_code == 202, answer.text
    accepted = answer.json()
    assert answer.headers["location"] == f"/v1/batches/{accepted['batch_id']}"
    assert (accepted["total"], len(accepted["rollouts"])) == (3, 3)
    kept = await store.rollouts.trunk(accepted["batch_id"])
    assert kept is not None
    assert RolloutResult.model_validate_json(kept).uid == parent.uid
    claim = await worker.claim(accepted["rollouts"][2])
    assert claim.spec.fork is not None
    assert (claim.spec.fork.uid, claim.spec.fork.turn, claim.spec.server_url) == (parent.uid, 2, URL)
    status = (await client.get(f"/v1/batches/{accepted['batch_id']}")).json()
    assert status["labels"] == {"tree": "1", "forked_from": parent.uid}


async def test_a_fork_that_never_ran_says_what_it_is_a_fork_of(
    client: httpx.AsyncClient, store: Store, worker: ScriptedWorker
) -> None:
    parent = await ended(client, worker)
    accepted = (await fork(client, parent.uid, {"turn": 2, "n": 2, "server_url": URL})).json()
    single, other = accepted["rollouts"]
    await store.rollouts.cancel(single)
    await store.batches.cancel(accepted["batch_id"])
    for uid in (single, other):
        result = (await client.get(f"/v1/rollouts/{uid}")).json()["result"]
        assert result["status"] == "cancelled"
        assert result["forked_from"] == {"uid": parent.uid, "turn": 2, "train_trunk": False}


async def test_by_the_caller_s_own_name_and_once_per_key(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    parent = await ended(client, worker)
    document = {"turn": 1, "server_url": URL, "rollout_id": "tree/0"}
    first = await fork(client, parent.uid, document, **{"Idempotency-Key": "k"})
    again = await fork(client, parent.uid, document, **{"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["batch_id"] == again.json()["batch_id"]
    other = await fork(client, parent.uid, {**document, "turn": 2}, **{"Idempotency-Key": "k"})
    assert other.status_code == 409
    assert other.json()["error"]["batch_id"] == first.json()["batch_id"]
    # The name has a slash, and the fork itself has not ended.
    named = await fork(client, "tree/0", document)
    assert named.status_code == 409
    assert "has not ended" in named.json()["error"]["message"]


async def test_once_per_key_although_the_parent_was_deleted(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    parent = await ended(client, worker)
    document = {"turn": 1, "server_url": URL}
    first = await fork(client, parent.uid, document, **{"Idempotency-Key": "k"})
    assert first.status_code == 202
    await client.delete(f"/v1/batches/{parent.batch_id}", params={"purge": True})
    again = await fork(client, parent.uid, document, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["batch_id"]) == (200, first.json()["batch_id"])
    for name, changes, key, status in (
        (parent.uid, {"turn": 2}, "k", 409),
        (parent.uid, {}, "another", 404),
        ("b" + "0" * 32 + "-0", {}, "k", 404),
    ):
        answer = await fork(client, name, {**document, **changes}, **{"Idempotency-Key": key})
        assert answer.status_code == status, answer.text


async def test_what_is_refused(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    cases: list[tuple[Any, int, str]] = [
        ({"turn": 0, "server_url": URL}, 422, "turn"),
        ({"turn": 3, "server_url": URL}, 422, "last that can be sampled"),
        ({"turn": 1}, 422, "no endpoint"),
        ({"turn": 1, "server_url": "http://169.254.169.254"}, 422, "server_url"),
        ({"turn": 1, "server_url": URL, "nonsense": 1}, 422, "nonsense"),
        ({"turn": 1, "server_url": URL, "seed": 2**80}, 422, "seed"),
        ([], 422, ""),
    ]
    parent = await ended(client, worker)
    for document, status, said in cases:
        answer = await fork(client, parent.uid, document)
        assert answer.status_code == status, answer.text
        assert said in answer.text


async def test_a_rollout_whose_data_was_deleted_or_never_was(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    parent = await ended(client, worker)
    purged = await client.delete(f"/v1/batches/{parent.batch_id}", params={"purge": True})
    assert purged.status_code == 200, purged.text
    for name in (parent.uid, f"{parent.batch_id}-7", "b" + "0" * 32 + "-0", "nobody", "%20", "x" * 5000):
        answer = await fork(client, name, {"turn": 1, "server_url": URL})
        assert answer.status_code == 404, (name, answer.text)


async def test_a_thousand_forks_are_one_batch(client: httpx.AsyncClient, store: Store, worker: ScriptedWorker) -> None:
    parent = await ended(client, worker)
    answer = await fork(client, parent.uid, {"turn": 2, "n": 1000, "seed": 1, "server_url": URL})
    assert answer.status_code == 202, answer.text
    seeds = {(await worker.claim(uid)).spec.sampling_params.extra()["seed"] for uid in answer.json()["rollouts"][::250]}
    assert seeds == {1, 251, 501, 751}
