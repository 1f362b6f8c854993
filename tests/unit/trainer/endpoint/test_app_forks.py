"""A fork begins at the endpoint with the turn at which it leaves its parent, after the ids that it brings."""

import pytest
from tests.support.endpoint_client import (
    ANSWER,
    CALL,
    JSON,
    QUESTION,
    TOOLS,
    FixedTexts,
    ask,
    body,
    client_of,
    error_of,
    message_of,
    tool_messages,
    turn_headers,
)

from rolloutpool_common.protocol.turn_headers import HEADER_FORKED_FROM
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app

HISTORY = [QUESTION, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "Go on"}]
PARENT = {HEADER_FORKED_FROM: "parent-0/2"}


def headers(turn: int, **more: str) -> dict[str, str]:
    return {**turn_headers(turn), **more}


@pytest.fixture
def ids(tokenizer: ChatTokenizer) -> list[int]:
    """What the messages would never be rendered to."""
    return [*tokenizer.render_prompt(HISTORY), *tokenizer.encode("and other ids")]


async def test_the_policy_sees_the_very_ids(tokenizer: ChatTokenizer, ids: list[int]) -> None:
    policy = FixedTexts(tokenizer, "", CALL, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer, tools=TOOLS)
    async with client_of(app) as client:
        first = await ask(client, body(HISTORY, prompt_token_ids=ids), headers(2, **PARENT))
        reply = first.json()
        assert reply["prompt_token_ids"] == ids
        messages = [*HISTORY, message_of(first), *tool_messages(message_of(first))]
        added = len(tokenizer.render_delta(messages[-1:], sampled=reply["token_ids"], history=messages[:-1]).glue_ids)
        second = await ask(client, body(messages, [0] * added), headers(3))
        assert second.status_code == 200, second.text
        assert second.json()["prompt_token_ids"][: len(ids)] == ids
        again = await ask(client, body(HISTORY, prompt_token_ids=ids), headers(2, **PARENT))
        assert again.json() == reply
        # The turns before it were sampled for somebody else.
        refused = await ask(client, body([QUESTION]), headers(1))
        assert refused.status_code == 409
    session = app.get_session("r")
    assert (session.turns, session.mismatches) == (3, 0)
    assert session.prompt_ids == ids
    # Nothing of it reaches the policy as a sampling parameter.
    assert all("prompt_token_ids" not in params.extra for params in policy.params)


async def test_without_ids_the_messages_are_rendered(tokenizer: ChatTokenizer) -> None:
    for keeps_ids in (True, False):
        app = callback_app(FixedTexts(tokenizer, "", ANSWER), tokenizer=tokenizer, keeps_ids=keeps_ids)
        async with client_of(app) as client:
            first = await ask(client, body(HISTORY), headers(2, **PARENT))
        assert first.json()["prompt_token_ids"] == tokenizer.render_prompt(HISTORY)


async def test_a_mask_is_as_wrong_as_on_a_first_turn(tokenizer: ChatTokenizer, ids: list[int]) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        refused = await ask(client, body(HISTORY, [0] * 3, prompt_token_ids=ids), headers(2, **PARENT))
    assert refused.status_code == 422


@pytest.mark.parametrize("given", [[], [-1], [1.5], [True], "1,2", {"a": 1}, [10**9]])
async def test_what_are_no_ids_of_the_tokenizer(tokenizer: ChatTokenizer, given: object) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        refused = await ask(client, body(HISTORY, prompt_token_ids=given), headers(2, **PARENT))
        assert "prompt_token_ids" in str(error_of(refused, 422))


async def test_ids_of_a_turn_that_is_no_fork_s_are_not_believed(tokenizer: ChatTokenizer, ids: list[int]) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)
    message: JSON = body([QUESTION], prompt_token_ids=ids)
    async with client_of(app) as client:
        first = await ask(client, message, headers(1))
    assert first.json()["prompt_token_ids"] == tokenizer.render_prompt([QUESTION])
