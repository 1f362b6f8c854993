"""The Osmosis wire v3.3 on a real socket: accepted at once, polled under a lease, cancelled by id and prefix."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.support.api_callers import auth, shared_api
from tests.support.api_requests import v1_request
from tests.support.controller import accepted, poll, request, uid_of
from tests.support.durable_redis import durable_redis
from tests.support.inside_api import Api, client_of, running_api
from tests.support.scripted_worker import OWNER, ScriptedWorker, plain_result, run_v1
from tests.support.secrets import SECRETS
from tests.support.waiting import until, until_true

from rolloutpool_api import body
from rolloutpool_api.capabilities.osmosis import calls
from rolloutpool_common.capabilities.osmosis.leases import PollingLeases
from rolloutpool_common.capabilities.osmosis.request import LEASE_HEADER
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.store import Store, keys

MANY = 200


async def test_from_accepted_to_the_end(client: httpx.AsyncClient, worker: ScriptedWorker, store: Store) -> None:
    answer = await client.post("/rollout", json=request(label="42", llm_api_key="sk"))
    assert answer.status_code == 202
    said = answer.json()
    token = said.pop("polling_lease_token")
    assert said == {
        "rollout_id": "run7-row3-0",
        "status": "queued",
        "result_wait_timeout_sec": 30.0,
        "polling_lease_timeout_sec": 120.0,
    }
    uid = await uid_of(store)
    waiting = asyncio.create_task(poll(client, token))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    claim = await worker.claim(uid)
    # A claim is a change of the status, so the poll does not wait for its 30 s.
    assert (await waiting).json() == {
        "rollout_id": "run7-row3-0",
        "status": "running",
        "sample": None,
        "err_message": None,
        "err_category": None,
    }
    assert claim.spec.messages_only
    assert (claim.spec.server_url, claim.spec.max_turns) == ("http://127.0.0.1:8081/v1/rollouts/x", 100)
    assert store.with_secrets(claim.spec).callback_api_key == "sk"
    waiting = asyncio.create_task(poll(client, token))
    await asyncio.sleep(0.05)
    await store.rollouts.finish(claim, plain_result(claim, labels=claim.spec.labels))
    ended = (await waiting).json()
    assert (ended["status"], ended["err_category"]) == ("success", None)
    assert ended["sample"]["messages"][-1] == {"role": "assistant", "content": "42"}
    assert (ended["sample"]["label"], ended["sample"]["reward"]) == ("42", None)
    assert ended["sample"]["extra_fields"]["uid"] == uid
    # It may be read again, and the record has everything.
    assert (await poll(client, token)).json() == ended
    assert (await client.get("/v1/rollouts/run7-row3-0")).json()["uid"] == uid


async def test_the_same_id_again_is_a_conflict_until_it_is_forgotten(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    token = await accepted(client)
    answers = await asyncio.gather(*(client.post("/rollout", json=request()) for _ in range(5)))
    assert {(answer.status_code, answer.json()["detail"]) for answer in answers} == {
        (409, "rollout_id is already registered")
    }
    await worker.end(await uid_of(store))
    assert (await client.post("/rollout", json=request())).status_code == 409
    assert (await poll(client, token)).json()["status"] == "success"


async def test_of_many_with_one_id_one_is_accepted(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(client.post("/rollout", json=request(label=str(n))) for n in range(50)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 49


async def test_who_may_not_poll(client: httpx.AsyncClient) -> None:
    token = await accepted(client)
    other = await accepted(client, "other")
    for wrong in (other, "x", token[:-1]):
        answer = await poll(client, wrong)
        assert (answer.status_code, answer.json()) == (403, {"detail": "invalid polling lease"})
    for missing in ({}, {LEASE_HEADER: ""}):
        answer = await client.get("/rollout/run7-row3-0/result", headers=missing)
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["loc"][0] == "header"
    odd = await client.get("/rollout/run7-row3-0/result", headers={LEASE_HEADER.encode(): b"\xff\xfe"})
    assert odd.status_code == 403
    unknown = await poll(client, token, "nobody")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "unknown rollout_id"})


async def test_a_poll_answers_after_its_time(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WAIT_SECONDS", 0.1)
    assert (await poll(client, await accepted(client))).json()["status"] == "queued"


async def test_a_claim_before_the_first_poll_is_told_at_once(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    token = await accepted(client)
    await worker.claim(await uid_of(store))
    assert (await asyncio.wait_for(poll(client, token), 10)).json()["status"] == "running"


async def test_cancel_by_id_prefix_and_all(client: httpx.AsyncClient, worker: ScriptedWorker, store: Store) -> None:
    names = ["a-1", "a-2", "b-1", "b-2", "c-1"]
    tokens = {name: await accepted(client, name) for name in names}
    await worker.claim(await uid_of(store, "a-2"))
    await worker.end(await uid_of(store, "c-1"))

    async def cancel(**selector: Any) -> dict[str, str]:
        answer = await client.post("/rollout/cancel", json=selector)
        assert answer.status_code == 200
        found: dict[str, str] = answer.json()["dispositions"]
        return found

    assert await cancel(ids=["b-1", "b-1", "c-1", "nobody"]) == {
        "b-1": "cancelled_queued",
        "c-1": "not_found",
        "nobody": "not_found",
    }
    # A prefix finds what has not ended; as the SDK's own client sends it, with nulls.
    assert await cancel(ids=None, prefix="a-", all=False) == {"a-1": "cancelled_queued", "a-2": "cancelled_running"}
    assert await cancel(prefix="a-") == {}
    assert await cancel(all=True) == {"b-2": "cancelled_queued"}
    assert await cancel(ids=[]) == {}
    for name in ("a-1", "a-2", "b-1", "b-2"):
        ended = (await poll(client, tokens[name], name)).json()
        assert (ended["status"], ended["sample"], ended["err_category"]) == ("cancelled", None, None)
    assert (await poll(client, tokens["c-1"], "c-1")).json()["status"] == "success"


async def test_a_cancel_has_exactly_one_selector(client: httpx.AsyncClient) -> None:
    for selector in [{}, {"ids": ["a"], "prefix": "a"}, {"ids": [], "all": True}, {"all": False}, {"ids": None}]:
        answer = await client.post("/rollout/cancel", json=selector)
        assert answer.status_code == 422
        assert "pass exactly one selector: ids, prefix, or all" in answer.text


async def test_tenants_are_apart(redis_url: str, store: Store) -> None:
    async with shared_api(redis_url) as client:
        tokens = {}
        for name in ("ann", "bob", "boss"):
            answer = await client.post("/rollout", json=request("job-1"), headers=auth(name))
            assert answer.status_code == 202
            tokens[name] = answer.json()["polling_lease_token"]
        # Another's token, an administrator's key, and ids and prefixes of others.
        for name, token in (("ann", tokens["bob"]), ("boss", tokens["ann"])):
            assert (await poll(client, token, "job-1", headers=auth(name))).status_code == 403
        for selector in ({"prefix": "job"}, {"all": True}, {"ids": ["job-1"]}):
            answer = await client.post("/rollout/cancel", json=selector, headers=auth("bob"))
            assert answer.json()["dispositions"].get("job-1") in ("cancelled_queued", "not_found", None)
        for name, status in (("ann", RolloutStatus.QUEUED), ("bob", RolloutStatus.CANCELLED)):
            look = await PollingLeases(store).look(name, "osmosis/job-1", tokens[name])
            assert look.status is status
        # Who may only read polls, and neither submits nor cancels.
        reading = auth("ann-read")
        assert (await client.post("/rollout", json=request("x"), headers=reading)).status_code == 403
        assert (await client.post("/rollout/cancel", json={"all": True}, headers=reading)).status_code == 403
        assert (await poll(client, "x", "job-1", headers=reading)).json() == {"detail": "invalid polling lease"}


async def test_without_a_key_it_is_closed_where_v1_is_open(redis_url: str, store: Store) -> None:
    async with shared_api(redis_url) as client:
        worker = ScriptedWorker(store)
        await worker.announce()
        # From loopback, protocol v1 needs no key.
        assert (await run_v1(client, worker, v1_request())).json()["status"] == "COMPLETED"
        for refused in (
            await client.post("/rollout", json=request()),
            await client.post("/rollout/cancel", json={"all": True}),
            await poll(client, "x"),
        ):
            assert refused.status_code == 401
            assert isinstance(refused.json()["detail"], str)
        assert await store.rollouts.find("run7-row3-0", OWNER) is None


BOTH = {"server_url": "http://127.0.0.1:8081", "messages": [], "sampling_params": {}, "tokenizer_name": "tiny"}


async def test_what_is_refused(client: httpx.AsyncClient) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (BOTH, "leave one out"),
        ({"server_url": None}, "leave one out"),
        ({"completion_callback_url": "http://127.0.0.1:1"}, "up to 0.3.1"),
        ({"rollout_id": "a/b"}, "single path segment"),
        ({"chat_completions_url": ...}, "Field required"),
        ({"grade": True}, "name a grader in metadata.rolloutpool.grader"),
        ({"metadata": {"rolloutpool": {"tool": []}}}, "metadata.rolloutpool.tool"),
        ({"chat_completions_url": "http://169.254.169.254/v1"}, "169.254.169.254"),
        ({"metadata": {"n": 2**70}}, "beyond 64 bits"),
    ]
    for changes, text in cases:
        answer = await client.post("/rollout", json=request(**{"llm_api_key": "sk-secret", **changes}))
        assert "sk-secret" not in answer.text
        assert answer.status_code == 422
        (fault, *_) = answer.json()["detail"]
        assert fault["loc"][0] == "body"
        assert text in fault["msg"]


async def test_v1_s_bodies_are_v1_s(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    """Also those that speak of the other wire's fields, and those that are broken."""
    prompt = [{"role": "user", "content": 'send "chat_completions_url" and "initial_messages"'}]
    answer = await run_v1(client, worker, v1_request(messages=prompt, initial_messages=[]))
    assert (answer.status_code, answer.json()["status"]) == (200, "COMPLETED")
    for broken in (b'{"chat_completions_url": ', b'["chat_completions_url"]', b'{"x": NaN, "initial_messages": []}'):
        refused = await client.post("/rollout", content=broken, headers={"content-type": "application/json"})
        plain = broken.replace(b"chat_completions_url", b"chat_completions_urx").replace(b"initial_", b"initiax_")
        as_ever = await client.post("/rollout", content=plain, headers={"content-type": "application/json"})
        assert refused.status_code == as_ever.status_code == 422
        assert [fault["type"] for fault in refused.json()["detail"]] == [
            fault["type"] for fault in as_ever.json()["detail"]
        ]
    # A body that is not JSON is no other wire's either.
    text = await client.post("/rollout", content=json.dumps(request()), headers={"content-type": "text/plain"})
    assert text.status_code == 422


async def test_a_large_body_is_accepted_too(client: httpx.AsyncClient, worker: ScriptedWorker, store: Store) -> None:
    long = "x" * (body.FROM_BYTES + 1)
    token = await accepted(client, initial_messages=[{"role": "user", "content": long}])
    claim = await worker.claim(await uid_of(store))
    assert claim.spec.messages[0].content == long
    assert (await poll(client, token)).json()["status"] in ("running", "queued")
    refused = await client.post("/rollout", json=request(initial_messages=[{"role": "user", "content": long}]))
    assert (refused.status_code, refused.json()) == (409, {"detail": "rollout_id is already registered"})


async def test_a_deadline_that_has_passed_is_a_timeout(client: httpx.AsyncClient, store: Store) -> None:
    token = await accepted(client, agent_timeout_sec=-5)

    async def ended() -> bool:
        return await store.rollouts.result(await uid_of(store)) is not None

    await until(ended)
    assert (await poll(client, token)).json()["err_category"] == "timeout"


async def test_polls_go_on_where_the_api_is_started_again(redis_url: str, store: Store, worker: ScriptedWorker) -> None:
    async with running_api(redis_url) as first, client_of(first) as client:
        token = await accepted(client)
        uid = await uid_of(store)
        waiting = asyncio.create_task(poll(client, token))
        await asyncio.sleep(0.1)
        await first.stop()
        # The SDK's client repeats a poll that gets this.
        assert (await waiting).status_code == 503
    async with running_api(redis_url) as second, client_of(second) as client:
        assert (await client.post("/rollout", json=request())).status_code == 409
        waiting = asyncio.create_task(poll(client, token))
        await worker.claim(uid)
        assert (await waiting).json()["status"] == "running"
        assert (await poll(client, "wrong")).status_code == 403


@pytest.mark.slow
async def test_a_poll_outlasts_a_restart_of_redis() -> None:
    with durable_redis() as server:
        store = Store.open(server.url, secrets=SECRETS)
        worker = ScriptedWorker(store)
        async with running_api(server.url) as api, client_of(api) as client:
            token = await accepted(client)
            uid = await uid_of(store)
            waiting = asyncio.create_task(poll(client, token))
            signals = api.server.config.app.state.services.store.signals  # type: ignore[union-attr]
            # Before that a poll is answered with 503. The reconciler watches too, what ends.
            await until_true(lambda: any(name != keys.ENDS for name in signals._watches))
            server.kill()
            await asyncio.sleep(0.5)
            server.start()
            await worker.end(uid)
            answer = await waiting
            assert (answer.status_code, answer.json()["status"]) in ((200, "running"), (200, "success"))
            assert (await poll(client, token)).json()["status"] == "success"
        await store.close()


async def test_many_polls(api: Api, client: httpx.AsyncClient, worker: ScriptedWorker, store: Store) -> None:
    """At once, of one rollout: all of them wait, and all of them hear of its next status."""
    token = await accepted(client)
    uid = await uid_of(store)
    services = api.server.config.app.state.services  # type: ignore[union-attr]

    def all_wait() -> bool:
        return len(services.store.signals._watches.get(uid.rpartition("-")[0], ())) == MANY

    async def polls(told: str) -> None:
        answers = await asyncio.gather(*(calls.poll(services, "run7-row3-0", token, OWNER) for _ in range(MANY)))
        assert {json.loads(bytes(answer.body))["status"] for answer in answers} == {told}

    waiting = asyncio.create_task(polls("running"))
    await until_true(all_wait)
    claim = await worker.claim(uid)
    await waiting
    waiting = asyncio.create_task(polls("cancelled"))
    await until_true(all_wait)
    await store.rollouts.cancel(claim.uid)
    await waiting
