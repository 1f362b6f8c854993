"""The endpoint's surface: what the policy is told, keys, sessions, and what the template refuses."""

from pathlib import Path

import pytest
from tests.support.endpoint_client import (
    ANSWER,
    QUESTION,
    FixedTexts,
    ask,
    body,
    client_of,
    error_of,
    turn_headers,
)
from tests.support.tiny_tokenizers import write_tokenizer

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation


async def test_the_policy_version_travels_in_a_header(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer, policy_version="step-1")
    async with client_of(app) as client:
        first = await ask(client, body([QUESTION]), turn_headers(1))
        app.policy_version = "step-2"
        replayed = await ask(client, body([QUESTION]), turn_headers(1))
        other = await ask(client, body([QUESTION], rollout_id="other"))
    assert [r.headers["X-Policy-Version"] for r in (first, replayed, other)] == ["step-1", "step-1", "step-2"]
    # So that a worker with another tokenizer can say which one this is.
    assert first.headers["X-Tokenizer-Fingerprint"].endswith("tiny_tokenizer")
    assert app.get_session("r").samples[0].segments[0].policy_version == "step-1"

    def versioned(prompt_ids: list[int], params: GenerateParams) -> Generation:
        return Generation(token_ids=[5], logprobs=[-1.0], policy_version="own")

    for policy, version in ((versioned, "own"), (FixedTexts(tokenizer, ANSWER), None)):
        async with client_of(callback_app(policy, tokenizer=tokenizer)) as client:
            assert (await ask(client, body([QUESTION]))).headers.get("X-Policy-Version") == version


async def test_bearer_key(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer, api_key="k")
    async with client_of(app) as client:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "k"}, {"Authorization": "bearer k"}):
            response = await ask(client, body([QUESTION]), headers)
            assert error_of(response, 401)["type"] == "unauthorized"
            assert response.headers["WWW-Authenticate"] == "Bearer"
        assert (await client.delete("/v1/sessions/r")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        assert (await ask(client, body([QUESTION]), {"Authorization": "Bearer k"})).status_code == 200


async def test_what_the_template_refuses(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "{{ raise_exception('nothing is right') }}")
    refusing = load_tokenizer(str(tmp_path))
    app = callback_app(FixedTexts(refusing, ANSWER), tokenizer=refusing)
    async with client_of(app) as client:
        assert error_of(await ask(client, body([QUESTION])), 400)["type"] == "template_refused"


async def test_content_may_come_in_parts_of_text_alone(tokenizer: ChatTokenizer) -> None:
    policy = FixedTexts(tokenizer, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer)
    halves = [{"type": "text", "text": QUESTION["content"][:5]}, {"type": "text", "text": QUESTION["content"][5:]}]
    image = {"type": "image_url", "image_url": {"url": "base64"}}
    async with client_of(app) as client:
        await ask(client, body([{**QUESTION, "content": halves}]))
        error = error_of(await ask(client, body([{**QUESTION, "content": [*halves, image]}], rollout_id="other")), 422)
    assert policy.prompts == [tokenizer.render_prompt([QUESTION])]
    fault = {"path": "messages.0.content.2", "message": "type image_url; only text is supported"}
    assert (error["type"], error["faults"]) == ("bad_request", [fault])


async def test_sessions_can_be_dropped(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        await ask(client, body([QUESTION], rollout_id="job/step 1"))
        assert (await client.get("/health")).json() == {"status": "healthy", "sessions": 1}
        assert (await client.delete("/v1/sessions/job/step 1")).status_code == 204
        assert error_of(await client.delete("/v1/sessions/job/step 1"), 404)["type"] == "not_found"
    with pytest.raises(KeyError, match="job/step 1"):
        app.get_session("job/step 1")
