"""Requests that the endpoint cannot read are refused with the place of the fault."""

import pytest
from tests.support.endpoint_client import ANSWER, JSON, QUESTION, FixedTexts, ask, body, client_of, error_of

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"a": NaN}'])
async def test_bodies_that_are_no_json_object(tokenizer: ChatTokenizer, content: bytes) -> None:
    async with client_of(callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        response = await client.post("/v1/chat/completions", content=content)
    assert error_of(response, 400)["type"] == "bad_json"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, None),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"rollout_id": None}, "rollout_id"),
        ({"rollout_id": ""}, None),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop": "x"}, "stop"),
    ],
)
async def test_bodies_with_faults(tokenizer: ChatTokenizer, change: JSON, path: str | None) -> None:
    async with client_of(callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        error = error_of(await ask(client, {**body([QUESTION]), **change}), 422)
    assert error["type"] == "bad_request"
    assert path is None or any(fault["path"].startswith(path) for fault in error["faults"])


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": "nothing"},
        {"Idempotency-Key": "/1"},
        {"Idempotency-Key": "u/0"},
        {"Idempotency-Key": "u/x"},
        {"Idempotency-Key": "u/1", "X-Rollout-Attempt": "0"},
        {"X-Rollout-Attempt": "first"},
    ],
)
async def test_headers_that_cannot_be_read(tokenizer: ChatTokenizer, headers: dict[str, str]) -> None:
    async with client_of(callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        assert error_of(await ask(client, body([QUESTION]), headers), 400)["type"] == "bad_header"
