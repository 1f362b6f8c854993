"""What the endpoint's sessions know of each token, and the masks that it takes."""

from itertools import pairwise
from typing import Any

import httpx
import pytest
from tests.support.endpoint_client import (
    ANSWER,
    CALL,
    JSON,
    QUESTION,
    RESULT_GLUE,
    TOOLS,
    FixedTexts,
    ask,
    body,
    client_of,
    error_of,
    message_of,
    second_turn,
    tool_messages,
    turn_headers,
)

from rolloutpool_common.protocol.completions import CompletionsResponse
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_common.rendering.proof.claims import Joint
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts


async def test_single_turn_is_all_ones(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        response = await ask(client, body([QUESTION], model="default", temperature=0.5))
    reply = CompletionsResponse.model_validate(response.json())
    assert reply.token_ids == tokenizer.encode(ANSWER)
    assert reply.prompt_token_ids == tokenizer.render_prompt([QUESTION])
    assert reply.choices[0].message.content == "The result is 38."
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"
    session = app.get_session("r")
    assert session.prompt_ids == reply.prompt_token_ids
    assert session.response_ids == reply.token_ids
    assert session.response_mask == [1] * len(reply.token_ids)
    assert session.response_logprobs == reply.logprobs
    assert (session.ones, session.zeros, session.turns) == (len(reply.token_ids), 0, 1)


async def test_a_turn_cut_by_length_is_closed_by_a_zero(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, "The result", "is 38.<|im_end|>"), tokenizer=tokenizer)
    again = {"role": "user", "content": "Go on"}
    glue = tokenizer.encode("<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n")
    async with client_of(app) as client:
        response = await ask(client, body([QUESTION]))
        assert response.json()["choices"][0]["finish_reason"] == "length"
        messages = [QUESTION, message_of(response), again]
        assert error_of(await ask(client, body(messages, [0] * (len(glue) - 1))), 422)["expected"] == len(glue)
        assert (await ask(client, body(messages, [0] * len(glue)))).status_code == 200
    first, second = tokenizer.encode("The result"), tokenizer.encode("is 38.<|im_end|>")
    assert app.get_session("r").response_ids == first + glue + second
    assert app.get_session("r").response_mask == [1] * len(first) + [0] * len(glue) + [1] * len(second)


@pytest.mark.parametrize("keeps_ids", [True, False])
async def test_scripted_rollouts_of_both_kinds_of_trainer(tokenizer: ChatTokenizer, keeps_ids: bool) -> None:
    """Each sampled token is trained once, and every reply repeats byte for byte after the rollout."""
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, keeps_ids=keeps_ids, tools=TOOLS)
    forked = 0
    async with client_of(app) as client:
        for index, question in enumerate(calculator_prompts(24)):
            messages: list[JSON] = [{"role": "user", "content": question}]
            asked: list[tuple[JSON, dict[str, str], httpx.Response]] = []
            sampled: list[list[int]] = []
            context: list[int] = []
            mask: list[int] | None = None
            while True:
                document = body(messages, mask, rollout_id=f"r{index}")
                headers = turn_headers(len(asked) + 1, uid=f"u{index}")
                response = await ask(client, document, headers)
                if response.status_code == 422:
                    # Only an endpoint that renders again can expect another length than what was appended.
                    expected = error_of(response, 422)["expected"]
                    assert not keeps_ids
                    mask = None if expected is None else [0] * expected
                    continue
                asked.append((document, headers, response))
                reply = response.json()
                if keeps_ids:
                    assert reply["prompt_token_ids"][: len(context)] == context
                sampled.append(reply["token_ids"])
                context = reply["prompt_token_ids"] + reply["token_ids"]
                message = message_of(response)
                results = tool_messages(message)
                messages = [*messages, message, *results]
                if not results:
                    break
                last = reply["token_ids"][-1]
                delta = tokenizer.render_delta(results, sampled=[last], tools=TOOLS)
                mask = [0] * (len(delta.close_ids) + len(delta.glue_ids))
            session = app.get_session(f"r{index}")
            trained = [
                token
                for sample in session.samples
                for token, bit in zip(sample.response_ids, sample.response_mask, strict=True)
                if bit
            ]
            assert trained == [token for turn in sampled for token in turn]
            assert session.turns == len(asked)
            forked += len(session.samples) > 1
            for document, headers, response in asked:
                again = await ask(client, document, headers)
                assert again.content == response.content
    assert bool(forked) is not keeps_ids
    assert app.sampling_log.repeated() == {}


@pytest.mark.parametrize("mask", [None, [0], []])
async def test_a_history_that_was_cut_is_refused_unless_the_request_says_so(
    tokenizer: ChatTokenizer, mask: list[int] | None
) -> None:
    app = callback_app(FixedTexts(tokenizer, CALL, ANSWER, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        messages = await second_turn(client)
        glue = len(tokenizer.encode(RESULT_GLUE.format(38)))
        assert (await ask(client, body(messages, [0] * glue))).status_code == 200
        error = error_of(await ask(client, body([{"role": "user", "content": "Hi"}], mask)), 422)
        assert "X-History-Edited" in error["message"]
        prompt = tokenizer.render_prompt([{"role": "user", "content": "Hi"}])
        headers = {"X-History-Edited": "1"}
        said = await ask(client, body([{"role": "user", "content": "Hi"}], [0] * len(prompt)), headers)
        assert said.status_code == 200


async def test_long_bodies_render_alike(tokenizer: ChatTokenizer) -> None:
    policy = FixedTexts(tokenizer, ANSWER, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer, strict=False)
    long = {"role": "user", "content": "Calculate 1 + 1. " * 4000}
    async with client_of(app) as client:
        message = message_of(await ask(client, body([QUESTION])))
        message_of(await ask(client, body([QUESTION, message, long])))
    delta = tokenizer.render_delta([long], sampled=tokenizer.closing)
    assert policy.prompts[1] == policy.prompts[0] + tokenizer.encode(ANSWER) + list(delta.glue_ids)


@pytest.mark.parametrize("change", [None, -1, 1, -999], ids=["missing", "shorter", "longer", "empty"])
async def test_strict_refuses_wrong_masks(tokenizer: ChatTokenizer, change: int | None) -> None:
    app = callback_app(FixedTexts(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    length = len(tokenizer.encode(RESULT_GLUE.format(38)))
    async with client_of(app) as client:
        messages = await second_turn(client)
        wrong = None if change is None else [0] * max(0, length + change)
        error = error_of(await ask(client, body(messages, wrong)), 422)
        assert error["type"] == "mask_mismatch"
        assert error["expected"] == length
        assert error["received"] == (None if wrong is None else len(wrong))
        assert app.get_session("r").turns == 1
        message_of(await ask(client, body(messages, [0] * length)))
    assert app.get_session("r").turns == 2


async def test_lenient_counts_wrong_masks(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, CALL, ANSWER), tokenizer=tokenizer, strict=False)
    async with client_of(app) as client:
        message = message_of(await ask(client, body([QUESTION], [0, 0])))
        messages = [QUESTION, message, *tool_messages(message)]
        message_of(await ask(client, body(messages, "no mask at all")))
    session = app.get_session("r")
    assert session.mismatches == 2
    glue = len(tokenizer.encode(RESULT_GLUE.format(38)))
    assert session.zeros == glue


async def test_a_short_cut_that_gives_other_ids_is_noticed_here_too(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Joint, *_: Any) -> tuple[str, str]:
        return "<|im_end|>\nsomething else", "<|im_end|>\n"

    monkeypatch.setattr(Joint, "join", wrong)
    # Its own, because a doubt is for good.
    own = load_tokenizer(TINY)
    policy = FixedTexts(own, ANSWER, ANSWER, ANSWER)
    app = callback_app(policy, tokenizer=own, strict=False)
    messages = [QUESTION]
    async with client_of(app) as client:
        for _ in range(3):
            messages = [*messages, message_of(await ask(client, body(messages))), QUESTION]
    delta = tokenizer.render_delta([QUESTION], sampled=tokenizer.closing)
    for before, prompt in pairwise(policy.prompts):
        assert prompt == before + tokenizer.encode(ANSWER) + list(delta.glue_ids)
    assert len(own.doubts.found) == 1
