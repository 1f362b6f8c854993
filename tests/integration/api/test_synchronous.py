"""`POST /rollout` beyond the wire: joining, slots, deadlines, lost callers."""

import asyncio

import httpx
import pytest
from tests.support.api_requests import v1_request
from tests.support.durable_redis import durable_redis
from tests.support.inside_api import client_of, running_api
from tests.support.results import LONG_SAMPLE
from tests.support.scripted_worker import OWNER, ScriptedWorker, run_v1
from tests.support.secrets import SECRETS
from tests.support.waiting import until, until_true

from rolloutpool_api import synchronous
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.store import Store
from rolloutpool_common.store.rollouts import Rollouts
from rolloutpool_common.store.v1_answers import V1End

CROWD = 30


async def test_the_same_body_joins_while_it_runs_and_after(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    body = v1_request()
    first = asyncio.create_task(client.post("/rollout", json=body))
    uid = await until(lambda: store.rollouts.find(body["rollout_id"], OWNER))
    # Key order and unknown fields don't make another request.
    second = asyncio.create_task(client.post("/rollout", json={"ignored": 1, **dict(reversed(body.items()))}))
    await worker.end(uid)
    answers = [await first, await second, await client.post("/rollout", json=body)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert len({answer.content for answer in answers}) == 1


async def test_a_new_rollout_is_looked_at_when_it_has_ended_and_not_before(
    redis_url: str, worker: ScriptedWorker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    read = Rollouts.v1_end

    async def noted(self: Rollouts, uid: str) -> V1End | None:
        looks.append(uid)
        return await read(self, uid)

    monkeypatch.setattr(Rollouts, "v1_end", noted)
    async with running_api(redis_url) as api, client_of(api) as client:
        await asyncio.sleep(0.1)  # the signals' reader has found its place, and woken everybody
        posted = asyncio.create_task(client.post("/rollout", json=v1_request()))
        await worker.end_named(v1_request()["rollout_id"])
        assert (await posted).json()["status"] == "COMPLETED"
        assert len(looks) == 1
        # One that joins may have missed the end, so it looks at once.
        assert (await client.post("/rollout", json=v1_request())).json() == (await posted).json()
        assert len(looks) == 2


async def test_who_looks_too_early_reads_no_rollout(
    redis_url: str, worker: ScriptedWorker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who wait look where signals were lost, or are read late; with the rollout each would read its prompt."""
    looks: list[str] = []
    read, view = Rollouts.v1_end, Rollouts.view

    async def noted(self: Rollouts, uid: str) -> V1End | None:
        looks.append("end")
        return await read(self, uid)

    async def viewed(self: Rollouts, uid: str, owner: str | None) -> RolloutView | None:
        looks.append("rollout")
        return await view(self, uid, owner)

    monkeypatch.setattr(Rollouts, "v1_end", noted)
    monkeypatch.setattr(Rollouts, "view", viewed)
    async with running_api(redis_url) as api, client_of(api) as client:
        posted = asyncio.create_task(client.post("/rollout", json=v1_request()))
        uid = await until(lambda: store.rollouts.find(v1_request()["rollout_id"], OWNER))
        await store.connection.redis.xadd("rp:finished", {"batch": uid.removesuffix("-0")})
        await until_true(lambda: looks)
        await worker.end(uid)
        assert (await posted).json()["status"] == "COMPLETED"
    assert "rollout" not in looks


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "begun"])
async def test_who_waits_for_a_rollout_that_is_deleted_with_its_end_is_answered(
    redis_url: str, store: Store, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """`purge-owner` cancels and deletes. The API looked after that, and held the request until its deadline."""
    read = Rollouts.v1_end

    async def late(self: Rollouts, uid: str) -> V1End | None:
        batch_id = uid.removesuffix("-0")
        if whole:
            await store.batches.delete(batch_id)
        else:
            await store.connection.redis.hset(f"rp:batch:{batch_id}", "deleting", 1)
            await store.connection.redis.unlink(f"rp:rollout:{uid}:result")
        return await read(self, uid)

    async with running_api(redis_url) as api, client_of(api) as client:
        posted = asyncio.create_task(client.post("/rollout", json=v1_request()))
        uid = await until(lambda: store.rollouts.find(v1_request()["rollout_id"], OWNER))
        monkeypatch.setattr(Rollouts, "v1_end", late)
        await store.rollouts.cancel(uid)
        answer = (await asyncio.wait_for(posted, 20)).json()
        assert (answer["status"], answer["error_message"]) == ("ERROR", "Rollout was deleted")


async def test_the_answer_that_the_worker_has_cut_is_passed_on_unread(
    client: httpx.AsyncClient, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = await run_v1(client, worker, v1_request(rollout_id="short"))
    with monkeypatch.context() as patched:
        patched.setattr(synchronous, "to_v1", None)
        long = await run_v1(client, worker, v1_request(rollout_id="long"), samples=[LONG_SAMPLE])
    assert long.text == short.text.replace('"short"', '"long"')
    assert long.headers.items() - short.headers.items() <= {("content-length", str(len(long.content)))}
    # The whole result is read as before.
    view = (await client.get("/v1/rollouts/long")).json()["result"]
    assert view["samples"][0]["response_ids"] == LONG_SAMPLE.response_ids


async def test_another_body_under_the_same_id_is_a_conflict(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    running = asyncio.create_task(client.post("/rollout", json=v1_request()))
    uid = await until(lambda: store.rollouts.find(v1_request()["rollout_id"], OWNER))
    for _ in range(2):
        other = await client.post("/rollout", json=v1_request(max_turns=2))
        assert other.status_code == 409
        assert "job-step1-idx0-ab12" in other.json()["detail"]
        assert "different body" in other.json()["detail"]
        if not running.done():
            await worker.end(uid)
            assert (await running).json()["status"] == "COMPLETED"


async def test_excess_rollouts_wait_before_their_submission(
    redis_url: str, worker: ScriptedWorker, store: Store
) -> None:
    async with running_api(redis_url, max_concurrent_rollouts=1) as api, client_of(api) as client:
        first = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="first")))
        uid = await until(lambda: store.rollouts.find("first", OWNER))
        second = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="second")))
        assert (await client.get("/health")).status_code == 200
        assert await store.rollouts.find("second", OWNER) is None
        await worker.end(uid)
        claim = await worker.claim(await until(lambda: store.rollouts.find("second", OWNER)))
        assert claim.queued_ms < 30_000
        await store.rollouts.cancel(claim.uid)
        assert (await first).json()["status"] == "COMPLETED"
        assert (await second).json()["error_message"] == "Rollout cancelled"


async def test_the_deadline_ends_it_with_v1s_words(redis_url: str, worker: ScriptedWorker) -> None:
    async with running_api(redis_url, rollout_timeout_seconds=0.5) as api, client_of(api) as client:
        response = await client.post("/rollout", json=v1_request())
    assert response.status_code == 200
    assert response.json() == {
        "rollout_id": "job-step1-idx0-ab12",
        "status": "ERROR",
        "final_messages": [],
        "finish_reason": None,
        "error_message": "Rollout timeout exceeded (0.5s)",
        "metrics": None,
        "extra_fields": {},
    }


async def test_a_lost_caller_finds_the_result_by_id(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    body = v1_request(rollout_id="job/7 idx")
    posted = asyncio.create_task(client.post("/rollout", json=body))
    uid = await until(lambda: store.rollouts.find("job/7 idx", OWNER))
    posted.cancel()
    await asyncio.wait([posted])
    await worker.end(uid)
    view = (await client.get("/v1/rollouts/job%2F7%20idx")).json()
    assert view["status"] == "completed"
    assert view["result"]["messages"][-1]["content"] == "42"
    assert (await client.get(f"/v1/rollouts/{uid}")).json() == view


async def test_a_rollout_can_be_cancelled_by_its_name(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    posted = asyncio.create_task(client.post("/rollout", json=v1_request(rollout_id="mine")))
    uid = await until(lambda: store.rollouts.find("mine", OWNER))
    cancelled = await client.delete("/v1/rollouts/mine")
    assert cancelled.json() == {"uid": uid, "status": RolloutStatus.CANCELLED}
    assert (await posted).json()["error_message"] == "Rollout cancelled"
    assert (await client.delete("/v1/rollouts/mine")).json()["status"] == "cancelled"


async def test_unknown_rollouts(client: httpx.AsyncClient) -> None:
    for response in (await client.get("/v1/rollouts/nobody"), await client.delete(f"/v1/rollouts/b{'0' * 32}-7")):
        assert response.status_code == 404
        assert "is unknown" in response.json()["error"]["message"]


async def test_a_crowd_outlives_callers_that_leave_and_a_redis_that_is_killed() -> None:
    crowd = CROWD
    bodies = [v1_request(rollout_id=f"crowd-{n}") for n in range(crowd)]
    limits = httpx.Limits(max_connections=None)
    with durable_redis() as server:
        store = Store.open(server.url, secrets=SECRETS)
        worker = ScriptedWorker(store)
        await worker.announce()

        async def named(rollout_id: str) -> str:
            return await until(lambda: store.rollouts.find(rollout_id, OWNER))

        async with (
            running_api(server.url, max_concurrent_rollouts=2 * crowd) as api,
            httpx.AsyncClient(base_url=api.url, timeout=120, trust_env=False, limits=limits) as client,
        ):
            # Each body twice: one of the two joins the other.
            posts = [asyncio.create_task(client.post("/rollout", json=body)) for body in bodies for _ in range(2)]
            uids = [await named(body["rollout_id"]) for body in bodies]
            left = posts[::3]
            for post in left:
                post.cancel()
            server.kill()
            await asyncio.sleep(0.3)
            server.start()
            for uid in uids:
                # It does not beat, and on a busy machine it would be declared dead meanwhile.
                await worker.announce()
                await worker.end(uid)
            answers = await asyncio.gather(*posts, return_exceptions=True)
            async with client_of(api) as later:
                again = [await later.post("/rollout", json=body) for body in bodies]
            stats = await store.totals.read()
        await store.close()
    results = [answer.json() for answer in again]
    assert [(answer["rollout_id"], answer["status"]) for answer in results] == [
        (body["rollout_id"], "COMPLETED") for body in bodies
    ]
    stayed = [(n // 2, answer) for n, answer in enumerate(answers) if posts[n] not in left]
    # A call that was on its way to Redis when that was killed may be refused, and be repeated by its caller.
    assert {isinstance(answer, httpx.Response) and answer.status_code for _, answer in stayed} <= {200, 503}
    served = [(n, answer) for n, answer in stayed if isinstance(answer, httpx.Response) and answer.status_code == 200]
    assert len(served) > len(stayed) / 2
    assert all(answer.json() == results[n] for n, answer in served)
    assert (stats.totals["accepted"], stats.totals["status:completed"], stats.open) == (crowd, crowd, 0)
