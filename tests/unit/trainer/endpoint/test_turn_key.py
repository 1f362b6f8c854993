"""Each answer repeats the key of its request, whatever it says."""

import pytest
from tests.support.endpoint_client import ANSWER, QUESTION, FixedTexts, ask, body, client_of

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app

KEY = {"Idempotency-Key": "u/1"}


@pytest.mark.parametrize(
    ("method", "path", "document", "status"),
    [
        ("POST", "/v1/chat/completions", {"messages": []}, 422),
        ("POST", "/v1/chat/completions", body([QUESTION], [0]), 422),
        ("GET", "/v1/chat/completions", None, 405),
        ("GET", "/health", None, 200),
        ("DELETE", "/v1/sessions/x", None, 404),
        ("GET", "/nowhere", None, 404),
    ],
)
async def test_so_does_everything_else(
    tokenizer: ChatTokenizer, method: str, path: str, document: object, status: int
) -> None:
    async with client_of(callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        answer = await client.request(method, path, json=document, headers=KEY)
    assert (answer.status_code, answer.headers.get_list("X-Turn-Key")) == (status, ["u/1"])


async def test_so_does_an_answer_without_the_right_key_for_the_endpoint(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer, api_key="k")
    async with client_of(app) as client:
        answer = await ask(client, body([QUESTION]), KEY)
    assert (answer.status_code, answer.headers["X-Turn-Key"]) == (401, "u/1")


async def test_a_key_that_cannot_be_read_comes_back_as_it_was(tokenizer: ChatTokenizer) -> None:
    async with client_of(callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        answer = await ask(client, body([QUESTION]), {"Idempotency-Key": "no key of ours"})
    assert (answer.status_code, answer.headers["X-Turn-Key"]) == (400, "no key of ours")
