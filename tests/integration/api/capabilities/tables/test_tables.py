"""`GET /v1/batches/{id}/rollouts`: a batch as a table, while it runs and after."""

import time
from typing import Any

import httpx
from redis.asyncio import Redis
from tests.support.api_callers import submit
from tests.support.api_requests import batch, v1_request
from tests.support.scripted_worker import ScriptedWorker, run_v1

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Alignment, Sample, SampleSegment, Spans, StopToken, TurnSummary
from rolloutpool_common.protocol.rows import ENDED_FIELDS, ROW_FIELDS, RowPage, row_values

FAILURE = Failure(
    kind=FailureKind.INFRA,
    boundary=Boundary.TRAINER,
    category=Category.NETWORK_ERROR,
    message="no route " * 100,
    retryable=True,
)
SAMPLE = Sample(
    prompt_ids=[1, 2, 3],
    response_ids=[4, 5, 6],
    response_mask=[1, 1, 0],
    response_logprobs=[-0.5, -0.25, 0.0],
    segments=[SampleSegment(kind="sampled", start=0, n=2, turn=1), SampleSegment(kind="glue", start=2, n=1, turn=1)],
)
TURN = TurnSummary(
    turn=1,
    prompt_tokens=3,
    sampled_tokens=2,
    mask_sent=None,
    finish_reason="stop",
    drift="none",
    tool_calls=1,
    stop=StopToken.SAMPLED,
    policy_version="step-7",
)


async def table(client: httpx.AsyncClient, uid: str, **params: Any) -> RowPage:
    response = await client.get(f"/v1/batches/{uid.partition('-')[0]}/rollouts", params=params)
    assert response.status_code == 200, response.text
    return RowPage.model_validate_json(response.content)


def row(page: RowPage, place: int) -> dict[str, Any]:
    return {name: column[place] for name, column in page.columns.items()}


async def test_live_and_ended_rows(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    document = batch(0)
    document["rollouts"] = [{"messages": [{"role": "user", "content": "x"}], "rollout_id": "mine", "n": 4}]
    uids = await submit(client, document)
    before = time.time() * 1000 - 60_000
    claim = await worker.claim(uids[1])
    result = await worker.end(
        uids[2],
        samples=[SAMPLE],
        alignment=Alignment.FORKED,
        drift={"thinking_stripped": 2, "edited": 1},
        warnings=["zero_logprobs"],
        turns=[TURN],
        num_tool_calls=1,
        max_context_tokens=5,
        spans=Spans(queued_ms=1.23, llm_ms=4.56, total_ms=10),
    )
    await worker.end(uids[3], status=RolloutStatus.FAILED, finish_reason=FinishReason.ERROR, failure=FAILURE)
    page = await table(client, uids[0])
    assert list(page.columns) == list(ROW_FIELDS)
    assert (page.total, page.matched, page.next_cursor) == (4, 4, None)
    queued, running, ended, failed = (row(page, place) for place in range(4))
    assert {name: value for name, value in queued.items() if value is not None} == {
        "index": 0,
        "uid": uids[0],
        "group": "mine",
        "rollout_id": "mine-0",
        "status": "queued",
        "turns": 0,
        "attempt": 0,
    }
    assert (running["status"], running["worker"], running["attempt"]) == ("running", "w1", 1)
    assert before < running["claimed_ms"] <= page.now_ms
    assert before < page.created_ms <= ended["claimed_ms"] <= ended["ended_ms"] <= page.now_ms
    made = dict(zip(list(ENDED_FIELDS)[2:], row_values(result), strict=True))
    assert {name: ended[name] for name in made} == {**made, "worker": "w1"}
    assert (ended["index"], ended["uid"], ended["group"], ended["attempt"]) == (2, uids[2], "mine", 1)
    assert (ended["status"], ended["rollout_id"], ended["alignment"]) == ("completed", "mine-2", "forked")
    assert (ended["drift"], ended["drifted_turns"], ended["tool_errors"]) == (["edited", "thinking_stripped"], 3, 0)
    assert (ended["turns"], ended["samples"], ended["sampled_tokens"], ended["tokens"]) == (1, 1, 2, 6)
    assert (ended["queued_ms"], ended["llm_ms"], ended["total_ms"], ended["loop_ms"]) == (1.2, 4.6, 10.0, None)
    assert (ended["mean_logprob"], ended["response_lengths"], ended["policy_versions"]) == (-0.375, [3], ["step-7"])
    assert (failed["kind"], failed["category"], failed["message"]) == ("infra", "network_error", FAILURE.message[:300])
    assert (failed["samples"], failed["mean_logprob"]) == (0, None)
    assert claim.uid == uids[1]


async def test_rows_of_a_cancelled_batch(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    uids = await submit(client, batch(3))
    await worker.end(uids[1])
    await client.delete(f"/v1/batches/{uids[0].partition('-')[0]}")
    page = await table(client, uids[0], fields="status,finish_reason,worker")
    assert page.columns == {
        "status": ["cancelled", "completed", "cancelled"],
        "finish_reason": ["cancelled", "stop", "cancelled"],
        "worker": [None, "w1", None],
    }


async def test_filter_sort_and_pages(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    uids = await submit(client, batch(9))
    for index in range(8):
        await worker.end(uids[index], num_llm_calls=index // 2, drift={"edited": 1} if index % 2 else {})
    assert (await table(client, uids[0], where="turns>1", fields="index")).columns == {"index": [4, 5, 6, 7]}
    page = await table(client, uids[0], where=["turns>=1", "drift~edited", "status=completed,failed"], fields="index")
    assert (page.columns, page.matched) == ({"index": [3, 5, 7]}, 3)
    assert (await table(client, uids[0], where="status!=completed", fields="index")).columns == {"index": [8]}
    assert (await table(client, uids[0], where="finish_reason=", fields="index")).columns == {"index": [8]}
    # In pages of 2; the queued one has 0 turns as well.
    for sort, expected in {
        "-turns": [6, 7, 4, 5, 2, 3, 0, 1, 8],
        "turns": [0, 1, 8, 2, 3, 4, 5, 6, 7],
        "index": list(range(9)),
        "-index": list(range(8, -1, -1)),
        "alignment": list(range(9)),
        "-llm_ms": [*range(8), 8],
        "-drift": [1, 3, 5, 7, 0, 2, 4, 6, 8],
    }.items():
        found: list[int] = []
        params: dict[str, Any] = {"sort": sort, "limit": 2, "fields": "index"}
        while True:
            page = await table(client, uids[0], **params)
            assert page.matched == 9
            found += page.columns["index"]
            if page.next_cursor is None:
                break
            params["cursor"] = page.next_cursor
        assert found == expected, sort


async def test_a_rollout_of_protocol_v1_has_a_row(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    await run_v1(client, worker, v1_request(rollout_id="mine"), samples=[SAMPLE])
    (summary,) = (await client.get("/v1/batches", params={"v1": "1"})).json()["batches"]
    page = await table(client, summary["batch_id"])
    assert (page.columns["rollout_id"], page.columns["sampled_tokens"]) == (["mine"], [2])
    assert page.columns["ended_ms"][0] >= page.columns["claimed_ms"][0] >= page.created_ms


async def test_nonsense_is_refused(client: httpx.AsyncClient) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"fields": "index,nonsense"}, 422),
        ({"sort": "nonsense"}, 422),
        ({"sort": "--index"}, 422),
        ({"where": "nonsense=1"}, 422),
        ({"where": "turns>many"}, 422),
        ({"where": "turns"}, 422),
        ({"where": ["turns>1"] * 9}, 422),
        ({"limit": "10001"}, 422),
        ({"cursor": "!"}, 400),
        ({"cursor": "WyJpbmRleCIsWzFdLDFd"}, 400),
        ({"cursor": "WyJpbmRleCIsMSwiMSJd"}, 400),
        ({"cursor": "eyJhIjoxfQ", "sort": "turns"}, 400),
        ({"cursor": "WyJ0dXJucyIsIngiLDFd", "sort": "turns"}, 400),
    ]
    (uid,) = await submit(client)
    for params, status in cases:
        response = await client.get(f"/v1/batches/{uid.partition('-')[0]}/rollouts", params=params)
        assert response.status_code == status, response.text


async def test_a_purged_batch_leaves_no_row(client: httpx.AsyncClient, worker: ScriptedWorker, raw: Redis) -> None:
    document = batch(1)
    document["rollouts"][0]["rollout_id"] = "mine"
    (uid,) = await submit(client, document)
    await worker.end(uid)
    batch_id = uid.partition("-")[0]
    assert await raw.exists(f"rp:batch:{batch_id}:rows", f"rp:batch:{batch_id}:names") == 2
    assert (await client.delete(f"/v1/batches/{batch_id}", params={"purge": "true"})).status_code == 200
    assert [key async for key in raw.scan_iter(f"rp:*{batch_id}*")] == []
    assert (await client.get(f"/v1/batches/{batch_id}/rollouts")).status_code == 404
