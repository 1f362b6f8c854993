"""Annotations: added whole or not at all, read with the rows, bounded, and nobody else's."""

import json
import math
import re
from typing import Any

import httpx
import orjson
import pytest
from redis.asyncio import Redis
from tests.support.api_callers import submit
from tests.support.api_requests import batch
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.capabilities.grading.annotating import MAX_NAMES, GroupStatisticsList, RolloutAnnotations
from rolloutpool_common.protocol.result import Sample, SampleSegment


def sample(n: int) -> Sample:
    return Sample(
        prompt_ids=[1],
        response_ids=[2] * n,
        response_mask=[1] * n,
        response_logprobs=[-0.5] * n,
        segments=[SampleSegment(kind="sampled", start=0, n=n, turn=1)],
    )


async def annotate(client: httpx.AsyncClient, uid: str, *items: dict[str, Any], **headers: str) -> httpx.Response:
    # httpx refuses NaN, which a trainer may well send.
    body = "[" + ",".join(json.dumps(item) for item in items) + "]"
    return await client.post(
        f"/v1/batches/{uid.partition('-')[0]}/annotations",
        content=f'{{"items":{body}}}',
        headers={"Content-Type": "application/json", **headers},
    )


async def test_scalars_are_columns_and_streams_are_read_one_by_one(
    client: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    uids = await submit(client, 4)
    for uid in uids[:3]:
        await worker.end(uid, samples=[sample(3), sample(1)])
    answer = await annotate(
        client,
        uids[0],
        {"rollout": uids[0], "scalars": {"reward": 1, "kl": 0.5}, "streams": {"adv": [[0.1, None, 3], [1e30]]}},
        {"rollout": 2, "scalars": {"reward": -1.5}},
        # One that has not ended may have a scalar.
        {"rollout": 3, "scalars": {"difficulty": 7}},
    )
    assert answer.status_code == 200, answer.text
    used = answer.json()["bytes_used"]
    assert used + answer.json()["bytes_left"] == 4 * 16 * 1024
    assert 0 < used < 1000
    table = (await client.get(f"/v1/batches/{uids[0].partition('-')[0]}/rollouts")).json()["columns"]
    assert table["annotations.reward"] == [1.0, None, -1.5, None]
    assert table["annotations.difficulty"] == [None, None, None, 7.0]
    params = {"where": "annotations.reward<2", "sort": "annotations.reward", "fields": "index,annotations.nothing"}
    found = (await client.get(f"/v1/batches/{uids[0].partition('-')[0]}/rollouts", params=params)).json()
    assert found["columns"] == {"index": [2, 0], "annotations.nothing": [None, None]}

    one = RolloutAnnotations.model_validate_json((await client.get(f"/v1/rollouts/{uids[0]}/annotations")).content)
    assert (one.scalars, one.streams) == ({"reward": 1.0, "kl": 0.5}, {"adv": [[0.1, None, 3.0], [1e30]]})
    # Added, not changed: the later value is what is seen, and both take memory.
    again = await annotate(
        client, uids[0], {"rollout": 0, "scalars": {"reward": 2}, "streams": {"adv": [[0] * 3, [0]]}}
    )
    assert again.json()["bytes_used"] > used
    one = RolloutAnnotations.model_validate_json((await client.get(f"/v1/rollouts/{uids[0]}/annotations")).content)
    assert (one.scalars["reward"], one.scalars["kl"], one.streams) == (2.0, 0.5, {"adv": [[0.0] * 3, [0.0]]})


async def test_a_repeated_request_is_carried_out_once(client: httpx.AsyncClient) -> None:
    (uid,) = await submit(client, 1)
    key = {"Idempotency-Key": "k"}
    first = await annotate(client, uid, {"rollout": 0, "scalars": {"reward": 1}}, **key)
    between = await annotate(client, uid, {"rollout": 0, "scalars": {"reward": 2}})
    again = await annotate(client, uid, {"rollout": 0, "scalars": {"reward": 1}}, **key)
    assert first.json()["bytes_used"] < between.json()["bytes_used"] == again.json()["bytes_used"]
    assert (await client.get(f"/v1/rollouts/{uid}/annotations")).json()["scalars"] == {"reward": 2.0}
    # Another body under the same key is no repetition, and must not be lost.
    assert (await annotate(client, uid, {"rollout": 0, "scalars": {"reward": 3}}, **key)).status_code == 200
    assert (await client.get(f"/v1/rollouts/{uid}/annotations")).json()["scalars"] == {"reward": 3.0}


async def test_nonsense_is_refused_whole(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    cases: list[dict[str, Any]] = [
        {"rollout": 2},
        {"rollout": -1},
        {"rollout": True},
        {"rollout": 0.0},
        {"rollout": "x"},
        {"rollout": f"b{'0' * 32}-0"},
        {"scalars": {"reward": 1}},
        {"rollout": 0, "more": 1},
        {"rollout": 0, "scalars": {"reward": "1"}},
        {"rollout": 0, "scalars": {"reward": True}},
        {"rollout": 0, "scalars": {"reward": None}},
        {"rollout": 0, "scalars": {"reward": 1e31}},
        {"rollout": 0, "scalars": {"reward": 10**400}},
        {"rollout": 0, "scalars": {"reward": math.nan}},
        {"rollout": 0, "scalars": {"reward": -math.inf}},
        {"rollout": 0, "scalars": {"": 1}},
        {"rollout": 0, "scalars": {"a b": 1}},
        {"rollout": 0, "scalars": {"x" * 65: 1}},
        {"rollout": 0, "scalars": {f"x{n}": 1 for n in range(MAX_NAMES + 1)}},
        {"rollout": 0, "streams": {"adv": [[1, 2]]}},
        {"rollout": 0, "streams": {"adv": [[1, 2, 3], [1]]}},
        {"rollout": 0, "streams": {"adv": []}},
        {"rollout": 0, "streams": {"adv": [["1", 2, 3]]}},
        {"rollout": 0, "streams": {"adv": [1, 2, 3]}},
        # It has not ended, so its length is not known.
        {"rollout": 1, "streams": {"adv": [[1]]}},
    ]
    uids = await submit(client, 2)
    await worker.end(uids[0], samples=[sample(3)])
    for item in cases:
        answer = await annotate(client, uids[0], {"rollout": 0, "scalars": {"good": 1}}, item)
        # NaN, infinity and an integer of 400 digits are no JSON numbers to the parser.
        is_json = not re.search("NaN|Infinity|0{400}", json.dumps(item))
        assert answer.status_code == (422 if is_json else 400), answer.text
        assert ("faults" in answer.json()["error"]) is is_json
        assert (await client.get(f"/v1/rollouts/{uids[0]}/annotations")).json()["scalars"] == {}


async def test_bodies_that_are_none(client: httpx.AsyncClient) -> None:
    (uid,) = await submit(client, 1)
    url = f"/v1/batches/{uid.partition('-')[0]}/annotations"
    bodies = {
        b"": 400,
        b"[": 400,
        b"[]": 422,
        b"{}": 422,
        b'{"items":[]}': 422,
        b'{"items":[{"rollout":0,"rollout":0}]}': 400,
        b'{"items":"' + b"x" * 2_000_000 + b'"}': 413,
        orjson.dumps({"items": [{"rollout": 0}] * 10_001}): 422,
    }
    for body, status in bodies.items():
        answer = await client.post(url, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, (body[:50], answer.text[:200])


async def test_a_batch_has_so_many_names_over_all_requests(client: httpx.AsyncClient) -> None:
    (uid,) = await submit(client, 1)
    for some in (range(MAX_NAMES // 2), range(MAX_NAMES // 2, MAX_NAMES)):
        scalars = {f"x{n}": 1 for n in some}
        assert (await annotate(client, uid, {"rollout": 0, "scalars": scalars})).status_code == 200
    assert (await annotate(client, uid, {"rollout": 0, "scalars": {"x0": 2}})).status_code == 200
    assert (await annotate(client, uid, {"rollout": 0, "scalars": {"more": 2}})).status_code == 422


async def test_bytes_are_bounded_and_go_with_the_batch(redis_url: str, worker: ScriptedWorker, raw: Redis) -> None:
    async with running_api(redis_url, annotation_kb=1) as api, client_of(api) as client:
        (uid,) = await submit(client, 1)
        await worker.end(uid, samples=[sample(3)])
        statuses = []
        for n in range(30):
            item = {"rollout": 0, "scalars": {"reward": n}, "streams": {"adv": [[n] * 3]}}
            statuses.append((await annotate(client, uid, item)).status_code)
        taken = statuses.count(200)
        assert statuses == [200] * taken + [413] * (30 - taken)
        assert 2 < taken < 20
        assert (await client.get(f"/v1/rollouts/{uid}/annotations")).json()["scalars"] == {"reward": taken - 1}
        kept = [key async for key in raw.scan_iter(f"rp:*{uid.partition('-')[0]}*")]
        sizes = [
            await raw.memory_usage(key) or 0 for key in kept if key.rpartition(b":")[2] in (b"scalars", b"streams")
        ]
        assert len(sizes) == 2
        assert sum(sizes) < 3000
        await client.delete(f"/v1/batches/{uid.partition('-')[0]}", params={"purge": "true"})
        assert [key async for key in raw.scan_iter(f"rp:*{uid.partition('-')[0]}*")] == []
        assert (await annotate(client, uid, {"rollout": 0, "scalars": {"reward": 1}})).status_code == 404


async def test_memory_of_open_rollouts_is_not_taken(
    client: httpx.AsyncClient, worker: ScriptedWorker, raw: Redis
) -> None:
    uids = await submit(client, 41)
    await worker.end(uids[0])
    used = int((await raw.info("memory"))["used_memory"])
    await raw.config_set("maxmemory", used + 1_600_000 + 16 * 2**20)
    # Forty rollouts are open, and 80 kB are promised to each; 16 MB are promised to vocabularies.
    answer = await annotate(client, uids[0], {"rollout": 0, "scalars": {"reward": 1}})
    assert answer.status_code == 503, answer.text
    assert "Retry-After" in answer.headers


async def test_statistics_of_groups(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    document = batch(0)
    message = [{"role": "user", "content": "x"}]
    document["rollouts"] = [
        {"messages": message, "n": 3, "group": "spread"},
        {"messages": message, "n": 2, "group": "flat"},
        {"messages": message, "group": "alone"},
        {"messages": message},
    ]
    uids = await submit(client, document)
    for uid in uids[:6]:
        await worker.end(uid, samples=[sample(4)])
    rewards = {0: 1, 1: 0, 3: 0.1 + 0.2, 4: 0.1 + 0.2, 5: 1}
    await annotate(client, uids[0], *({"rollout": n, "scalars": {"reward": value}} for n, value in rewards.items()))
    url = f"/v1/batches/{uids[0].partition('-')[0]}/group-statistics"
    found = GroupStatisticsList.model_validate_json((await client.get(url)).content)
    assert found.zero_spread == 1
    alone, flat, spread = found.groups
    assert (alone.group, alone.size, alone.annotated, alone.mean, alone.zero_spread) == ("alone", 1, 1, 1.0, False)
    assert (flat.group, flat.deviation, flat.zero_spread) == ("flat", 0.0, True)
    assert flat.mean == pytest.approx(0.3)
    assert (spread.size, spread.ended, spread.completed, spread.annotated) == (3, 3, 3, 2)
    assert (spread.mean, spread.deviation, spread.min, spread.max, spread.sampled_tokens) == (0.5, 0.5, 0.0, 1.0, 4.0)
    other = GroupStatisticsList.model_validate_json((await client.get(url, params={"of": "kl"})).content)
    assert [(group.annotated, group.mean, group.zero_spread) for group in other.groups] == [(0, None, False)] * 3


async def test_a_graders_reward_counts_until_another_one_is_annotated(
    client: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    document = batch(0)
    document["rollouts"] = [{"messages": [{"role": "user", "content": "x"}], "n": 3, "group": "g"}]
    uids = await submit(client, document)
    for uid, reward in zip(uids, (1.0, 1.0, None), strict=True):
        await worker.end(uid, samples=[sample(4)], reward=reward)
    url = f"/v1/batches/{uids[0].partition('-')[0]}/group-statistics"
    (graded,) = GroupStatisticsList.model_validate_json((await client.get(url)).content).groups
    assert (graded.annotated, graded.mean, graded.zero_spread) == (2, 1.0, True)
    await annotate(client, uids[0], {"rollout": 1, "scalars": {"reward": 0.0}})
    (mended,) = GroupStatisticsList.model_validate_json((await client.get(url)).content).groups
    assert (mended.annotated, mended.mean, mended.deviation, mended.zero_spread) == (2, 0.5, 0.5, False)
