"""A part of content that is no text is refused with 422 on each way into the pool, and its place is named."""

from typing import Any

import httpx
import pytest
from tests.support.api_requests import batch, v1_request
from tests.support.controller import request
from tests.support.finished_rollouts import rollout, sample, turn
from tests.support.journals import turn_record
from tests.support.kept_journals import carrying
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.protocol.messages import Message

SECRET = "AAAA" * 1000
TEXT = {"type": "text", "text": "What is this?"}
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SECRET}"}}
ONLY_TEXT = "type image_url; only text is supported"


def messages(*parts: Any) -> list[dict[str, Any]]:
    said = [{"role": role, "content": "x"} for role in ("system", "user")]
    return [*said, {"role": "user", "content": list(parts)}]


async def test_a_batch_lists_each_part_with_its_path(client: httpx.AsyncClient) -> None:
    document = batch(2)
    document["rollouts"][1]["messages"] = messages(TEXT, IMAGE, "x", {"type": "text"}, {"type": "text", "text": 7})
    answer = await client.post("/v1/batches", json=document)
    assert answer.status_code == 422
    assert SECRET not in answer.text
    at = "rollouts[1].messages[2].content"
    assert answer.json()["error"]["faults"] == [
        {"path": f"{at}[1]", "message": ONLY_TEXT},
        {"path": f"{at}[2]", "message": 'not an object (str); only {"type": "text", "text": "..."} is supported'},
        {"path": f"{at}[3]", "message": "a part of type text needs `text`"},
        {"path": f"{at}[4]", "message": "`text` must be a string"},
    ]


@pytest.mark.parametrize(("body", "field"), [(v1_request(), "messages"), (request(), "initial_messages")])
async def test_both_wires_of_rollout_name_the_part(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    answer = await client.post("/rollout", json={**body, field: messages(TEXT, IMAGE)})
    assert answer.status_code == 422
    assert SECRET not in answer.text
    (fault,) = answer.json()["detail"]
    assert (fault["loc"], fault["msg"]) == (["body", field, 2, "content", 1], ONLY_TEXT)
    assert {"type", "loc", "msg", "input"} <= set(fault)


async def test_parts_of_text_are_stored_as_they_were_given(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    document = batch(1)
    parts = [{**TEXT, "cache_control": {"type": "ephemeral"}}, TEXT]
    document["rollouts"][0]["messages"] = messages(*parts)
    answer = await client.post("/v1/batches", json=document)
    assert answer.status_code == 202, answer.text
    assert (await worker.claim(answer.json()["rollouts"][0])).spec.messages[2].content == parts


async def test_a_rollout_of_an_older_version_with_an_image_is_not_forked(
    client: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    submitted = await client.post("/v1/batches", json=batch(1))
    asked = Message(role="user", content=[TEXT, IMAGE])
    fields: dict[str, Any] = {
        "samples": [sample("ask", ("sampled", "ab", 1))],
        "turns": [turn(1)],
        "messages": [asked],
    }
    options = {"tokenizer_name": "rolloutpool/tiny"}
    carried = carrying(rollout(**fields), [turn_record("a")], [asked.wire()], options=options)
    parent = await worker.end(submitted.json()["rollouts"][0], **fields, replay=carried.replay)
    forked = {"turn": 1, "server_url": "http://127.0.0.1:8081"}
    answer = await client.post(f"/v1/rollouts/{parent.uid}/fork", json=forked)
    assert answer.status_code == 422
    assert (ONLY_TEXT in answer.text, SECRET in answer.text) == (True, False)
