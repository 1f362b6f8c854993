"""What a request says of a forgotten session is proved or refused, and a session that is known is never replaced."""

import asyncio
from typing import Any

import httpx
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

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.tokens.arrays import id_digest
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app


def app_of(tokenizer: ChatTokenizer, **options: Any) -> CallbackApp:
    return callback_app(FixedTexts(tokenizer, CALL, ANSWER, ANSWER), tokenizer=tokenizer, tools=TOOLS, **options)


def past_of(*parts: tuple[list[int], list[int]]) -> JSON:
    """Ids in turn: what was shown, and what was sampled after it."""
    ids: list[int] = []
    sampled = []
    for shown, said in parts:
        ids += shown
        sampled.append([len(ids), len(ids) + len(said)])
        ids += said
    return {"token_ids": ids, "digest": id_digest(ids), "sampled": sampled}


@pytest.fixture
async def turn(tokenizer: ChatTokenizer) -> JSON:
    """Turn 2 of a rollout whose turn 1 was sampled by an app that is gone."""
    async with client_of(app_of(tokenizer)) as client:
        first = await ask(client, body([QUESTION]), turn_headers(1))
    said = first.json()
    messages = [QUESTION, message_of(first), *tool_messages(message_of(first))]
    delta = tokenizer.render_delta(messages[2:], sampled=said["token_ids"], history=messages[:2], tools=TOOLS)
    past = past_of((said["prompt_token_ids"], said["token_ids"]))
    return body(messages, [0] * len([*delta.close_ids, *delta.glue_ids]), restore_session=past)


def plain(turn: JSON) -> JSON:
    return {key: value for key, value in turn.items() if key != "restore_session"}


async def restore(client: httpx.AsyncClient, turn: JSON, digest: str = "d", attempt: int = 1) -> httpx.Response:
    return await ask(client, turn, turn_headers(2, attempt, digest=digest))


async def test_the_same_turn_is_sampled_once(tokenizer: ChatTokenizer, turn: JSON) -> None:
    app = app_of(tokenizer)
    async with client_of(app) as client:
        replies = await asyncio.gather(*(restore(client, turn) for _ in range(8)))
        # A worker that died before it had the answer: the next attempt asks as it was planned.
        replies.append(await restore(client, plain(turn), attempt=2))
        late = error_of(await ask(client, body([QUESTION]), turn_headers(1, 2)), 409)
    assert [reply.status_code for reply in replies] == [200] * 9
    assert {reply.content for reply in replies} == {replies[0].content}
    assert app.sampling_log.count("r", 2) == 1
    assert "before this session was restored" in late["message"]


async def test_a_session_that_is_known_is_not_replaced(tokenizer: ChatTokenizer, turn: JSON) -> None:
    app = app_of(tokenizer)
    async with client_of(app) as client:
        message_of(await ask(client, body([QUESTION]), turn_headers(1)))
        known = app.get_session("r")
        # Call ids are made by chance, so to this session the history is another one.
        error = error_of(await restore(client, turn), 422)
        assert error["type"] == "mask_mismatch"
        ahead = error_of(await ask(client, turn, turn_headers(3)), 409)
    assert ahead["type"] == "conflict"
    assert app.get_session("r") is known
    assert (known.turns, known.restored) == (1, False)


async def test_a_failed_turn_leaves_nothing_behind(tokenizer: ChatTokenizer, turn: JSON) -> None:
    failures = [RuntimeError("no memory")]
    policy = FixedTexts(tokenizer, CALL, ANSWER)

    async def generate(prompt_ids: list[int], params: Any) -> Any:
        if failures:
            raise failures.pop()
        return await policy(prompt_ids, params)

    app = callback_app(generate, tokenizer=tokenizer, tools=TOOLS)
    async with client_of(app) as client:
        error_of(await restore(client, turn), 500)
        assert len(app.sessions) == 0
        # What was proved then is not known now.
        assert error_of(await restore(client, plain(turn)), 409)["type"] == "unknown_session"
        assert (await restore(client, turn)).status_code == 200


async def test_a_turn_that_only_the_mask_refuses_can_be_asked_again(tokenizer: ChatTokenizer, turn: JSON) -> None:
    for wrong in (None, turn["response_mask"][1:], [*turn["response_mask"][1:], 1], "0"):
        app = app_of(tokenizer, strict=False)
        async with client_of(app) as client:
            error = error_of(await restore(client, {**turn, "response_mask": wrong}), 422)
            assert error["type"] == "mask_mismatch"
            assert (len(app.sessions), len(app.sampling_log)) == (0, 0)
            assert (await restore(client, turn)).status_code == 200


@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda past: past.update(sampled=[]), "no sampled turn"),
        (lambda past: past.update(sampled=[*past["sampled"], *past["sampled"]]), "out of order"),
        (lambda past: past.update(sampled=[[-5, len(past["token_ids"])]]), "out of order"),
        (lambda past: past.update(sampled=[[0, len(past["token_ids"])]]), "out of order"),
        (lambda past: past.update(sampled=[[5, 10**9]]), "out of order"),
        (lambda past: past["sampled"][0].__setitem__(1, len(past["token_ids"]) - 1), "follow the last sampled one"),
        (lambda past: past["token_ids"].__setitem__(0, 10**6), "this tokenizer has"),
        (lambda past: past.update(digest="00"), "another digest"),
        (lambda past: past.update(past_of(([1], [2]), ([3], [4]))), "names 2 sampled turns"),
        (
            lambda past: past.update(past_of((past["token_ids"][:5], past["token_ids"][5:]))),
            "not what the history says",
        ),
    ],
    ids=["none", "twice", "negative", "no prompt", "too far", "more", "vocabulary", "digest", "turns", "longer"],
)
async def test_nonsense(tokenizer: ChatTokenizer, turn: JSON, change: Any, why: str, keeps_ids: bool) -> None:
    app = app_of(tokenizer, keeps_ids=keeps_ids)
    change(turn["restore_session"])
    async with client_of(app) as client:
        error = error_of(await restore(client, turn), 409)
    assert error["type"] == "session_unproved"
    assert error["rollout_id"] == "r"
    assert why in error["message"]
    assert (len(app.sessions), len(app.sampling_log)) == (0, 0)


@pytest.mark.parametrize(
    "past",
    [
        [],
        "x",
        {"token_ids": [1]},
        {"token_ids": [True], "digest": "", "sampled": []},
        {"token_ids": [-1], "digest": "", "sampled": []},
        {"token_ids": [2**32], "digest": "", "sampled": []},
        {"token_ids": [1], "digest": "", "sampled": [[1]]},
        {"token_ids": [1], "digest": "", "sampled": [[0.5, 1]]},
    ],
    ids=["list", "text", "parts missing", "true", "negative", "too large", "no end", "fraction"],
)
async def test_what_cannot_be_read(tokenizer: ChatTokenizer, turn: JSON, past: Any) -> None:
    async with client_of(app_of(tokenizer)) as client:
        assert error_of(await restore(client, {**turn, "restore_session": past}), 422)["type"] == "bad_request"


async def test_a_parser_that_fails_proves_nothing(tokenizer: ChatTokenizer, turn: JSON) -> None:
    def parse(_: str) -> Any:
        raise ValueError("not mine")

    app = app_of(tokenizer, parse=parse)
    async with client_of(app) as client:
        assert "cannot be parsed" in error_of(await restore(client, turn), 409)["message"]
    assert len(app.sessions) == 0


async def test_other_tools_are_another_prompt(tokenizer: ChatTokenizer, turn: JSON) -> None:
    app = callback_app(FixedTexts(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        error = error_of(await restore(client, turn), 409)
    assert "is not what this endpoint renders there" in error["message"]
