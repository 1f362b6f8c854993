"""Attachments over HTTP: asked for at an engine, promised at admission, and read by their owner."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from redis.asyncio import Redis
from tests.support.api_callers import submit
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker, plain_result

from rolloutpool_common.capabilities.engines.attachments import RolloutAttachments
from rolloutpool_common.capabilities.engines.kept import PackedArray, PackedPiece, write_pieces
from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.store import Store

ENGINE = {"server_urls": ["http://127.0.0.1:8000"], "protocol": "vllm", "attach": ["routed_experts"]}
EXPERTS = np.arange(24, dtype="|u1").reshape(4, 3, 2)
PIECE = PackedPiece(
    kind=AttachmentKind.ROUTED_EXPERTS,
    turn=1,
    first=3,
    n=2,
    digest="d",
    start=0,
    rows=4,
    arrays={"experts": PackedArray.of("|u1", (4, 3, 2), EXPERTS.tobytes())},
)
RECORD = write_pieces([PIECE])


def document(n: int = 1, **changes: Any) -> dict[str, Any]:
    rollouts = [{"messages": [{"role": "user", "content": f"Calculate {i} + 3"}]} for i in range(n)]
    return {"defaults": {"tokenizer_name": "tiny"}, "rollouts": rollouts, "trainer": ENGINE, **changes}


async def end(worker: ScriptedWorker, uid: str) -> None:
    claim = await worker.claim(uid)
    await worker.store.rollouts.finish(claim, plain_result(claim), attachments=RECORD)


async def test_they_are_read_as_they_were_sent(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    first, second = await submit(client, document(2))
    assert (await client.get(f"/v1/rollouts/{first}/attachments")).json() == {"uid": first, "pieces": []}
    await end(worker, first)
    await worker.end(second)
    answer = await client.get(f"/v1/rollouts/{first}/attachments")
    (piece,) = RolloutAttachments.model_validate_json(answer.content).pieces
    found = piece.arrays["experts"]
    assert np.array_equal(np.frombuffer(found.data, found.dtype).reshape(found.shape), EXPERTS)
    assert base64.b64decode(answer.json()["pieces"][0]["arrays"]["experts"]["data"]) == EXPERTS.tobytes()
    assert (await client.get(f"/v1/rollouts/{second}/attachments")).json()["pieces"] == []
    for name in ("nothing", f"{first}0", first.rpartition("-")[0], "b-1-2"):
        assert (await client.get(f"/v1/rollouts/{name}/attachments")).status_code == 404


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"trainer": {**ENGINE, "protocol": "callback"}}, "rollouts[0]"),
        ({"trainer": {**ENGINE, "attach": ["hidden_states"]}}, "trainer.attach[0]"),
        ({"trainer": {**ENGINE, "attach": "routed_experts"}}, "trainer.attach"),
        ({"trainer": {**ENGINE, "attach": ["sampling_mask"] * 3}}, "trainer.attach"),
    ],
)
async def test_only_engines_are_asked_and_only_for_what_they_have(
    client: httpx.AsyncClient, worker: ScriptedWorker, changes: dict[str, Any], where: str
) -> None:
    answer = await client.post("/v1/batches", json=document(**changes))
    assert answer.status_code == 422
    assert [fault["path"] for fault in answer.json()["error"]["faults"]] == [where]


async def test_what_they_may_take_is_kept_free(
    redis_url: str, store: Store, worker: ScriptedWorker, raw: Redis
) -> None:
    used = int((await raw.info("memory"))["used_memory"])
    settings = {"reserve_kb": 0, "annotation_kb": 0, "token_pieces_mb": 0, "attachment_kb": 2048}
    async with running_api(redis_url, **settings) as api, client_of(api) as client:
        await raw.config_set("maxmemory", used + 30 * 2**21)
        uids = await submit(client, document(20))
        assert (await store.usage.read()).total.reserved == 20 * 2**21
        assert (await client.post("/v1/batches", json=document(20))).status_code == 503
        # A batch that attaches nothing needs no room for it.
        plain = document(20, trainer={**ENGINE, "attach": []})
        assert (await client.post("/v1/batches", json=plain)).status_code == 202
        assert (await worker.claim(uids[0])).attachment_bytes == 2**21
        # What has ended is promised nothing any more.
        assert (await client.delete(f"/v1/batches/{uids[0].rpartition('-')[0]}")).status_code == 200
        assert (await store.usage.read()).total.reserved == 0
        await submit(client, document(20))
