"""A turn is sampled once, whoever asks for it how often."""

import asyncio

import pytest
from tests.support.endpoint_client import (
    ANSWER,
    CALL,
    QUESTION,
    FixedTexts,
    ask,
    body,
    client_of,
    error_of,
    second_turn,
    turn_headers,
)

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.policy_failures import policy_failed
from rolloutpool_trainer.errors import TurnRefused


class Latch:
    """A policy that waits for permission, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.calls = 0

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.calls += 1
        self.asked.set()
        await self.open.wait()
        return Generation(token_ids=[100 + self.calls], logprobs=[-1.0])


async def test_the_same_turn_joins_the_running_generation(tokenizer: ChatTokenizer) -> None:
    latch = Latch()
    app = callback_app(latch, tokenizer=tokenizer)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        first = group.create_task(ask(client, body([QUESTION]), turn_headers(1)))
        await latch.asked.wait()
        second = group.create_task(ask(client, body([QUESTION]), turn_headers(1, attempt=2)))
        other = await ask(client, body([QUESTION], temperature=0.1), turn_headers(1, attempt=2))
        stale = await ask(client, body([QUESTION]), turn_headers(1, attempt=1))
        latch.open.set()
    assert first.result().content == second.result().content
    assert error_of(other, 409)["type"] == "conflict"
    assert error_of(stale, 409)["expected"] == 2
    assert latch.calls == 1
    assert app.sampling_log.count("r", 1) == 1
    assert app.get_session("r", "u").attempt == 2


async def test_a_generation_outlives_its_caller(tokenizer: ChatTokenizer) -> None:
    latch = Latch()
    app = callback_app(latch, tokenizer=tokenizer)
    async with client_of(app) as client:
        dead = asyncio.create_task(ask(client, body([QUESTION]), turn_headers(1)))
        await latch.asked.wait()
        dead.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dead
        heir = asyncio.create_task(ask(client, body([QUESTION]), turn_headers(1, attempt=2)))
        latch.open.set()
        assert (await heir).json()["token_ids"] == [101]
    assert latch.calls == 1


async def test_the_digest_header_decides(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        first = await ask(client, body([QUESTION]), turn_headers(1, digest="d"))
        same = await ask(client, body([QUESTION], seed=1), turn_headers(1, digest="d"))
        other = await ask(client, body([QUESTION]), turn_headers(1, digest="e"))
    assert same.content == first.content
    assert error_of(other, 409)["received"] == "e"


async def test_errors_are_not_kept(tokenizer: ChatTokenizer) -> None:
    fail = [True, True, False]

    def flaky(prompt_ids: list[int], params: GenerateParams) -> Generation:
        if fail.pop(0):
            raise RuntimeError(f"no adapter for\n{QUESTION['content']!r} " + "x" * 300)
        return Generation(token_ids=[5], logprobs=[-1.0])

    app = callback_app(flaky, tokenizer=tokenizer)
    async with client_of(app) as client:
        for _ in range(2):
            response = await ask(client, body([QUESTION]), turn_headers(1))
            error = error_of(response, 500)
            assert error["type"] == "generate_failed"
            assert error["message"].startswith("the policy failed with RuntimeError: no adapter for '…' xxx")
            assert QUESTION["content"] not in response.text
            assert len(error["message"]) < 300
        assert (await ask(client, body([QUESTION]), turn_headers(1))).status_code == 200
    assert app.get_session("r").turns == 1
    assert len(app.sampling_log) == 1


async def test_what_no_repetition_mends_is_refused(tokenizer: ChatTokenizer) -> None:
    def policy(prompt_ids: list[int], params: GenerateParams) -> Generation:
        raise TurnRefused("this policy knows of no min_p")

    async with client_of(callback_app(policy, tokenizer=tokenizer)) as client:
        error = error_of(await ask(client, body([QUESTION]), turn_headers(1)), 400)
    assert (error["type"], error["message"]) == ("policy_refused", "this policy knows of no min_p")


async def test_the_same_failure_is_told_whole_once(tokenizer: ChatTokenizer, caplog: pytest.LogCaptureFixture) -> None:
    def policy(prompt_ids: list[int], params: GenerateParams) -> Generation:
        if params.turn == 1:
            raise RuntimeError("no adapter")
        raise AssertionError

    async with client_of(callback_app(policy, tokenizer=tokenizer)) as client:
        for _ in range(20):
            await ask(client, body([QUESTION]), turn_headers(1))
    lines = [record for record in caplog.records if "the policy failed" in record.message]
    assert [bool(record.exc_info) for record in lines] == [True, False, False, False, False]
    assert lines[-1].message == "the policy failed 16 times with RuntimeError, as it is logged above"


def test_half_of_a_surrogate_pair_can_be_sent() -> None:
    asked = GenerateParams(
        rollout_id="r",
        turn=1,
        messages=[],
        tools=None,
        temperature=1.0,
        top_p=1.0,
        max_tokens=9,
        stop=None,
        logprobs=True,
    )
    assert b"ud83d" in policy_failed(ValueError("no \ud83d"), asked, "").body()


async def test_an_error_does_not_quote_what_was_sampled(tokenizer: ChatTokenizer) -> None:
    def parse(text: str) -> Message:
        raise ValueError(f"no call in {text}")

    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer, parse=parse)
    async with client_of(app) as client:
        error = error_of(await ask(client, body([QUESTION]), turn_headers(1)), 500)
    assert error["message"].startswith("the policy failed with ValueError: no call in …; see")


async def test_a_turn_without_its_predecessors_conflicts(tokenizer: ChatTokenizer) -> None:
    app = callback_app(FixedTexts(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        messages = await second_turn(client, turn_headers(1))
        error = error_of(await ask(client, body(messages, [0]), turn_headers(3)), 409)
        assert (error["expected"], error["received"]) == (2, 3)
        error = error_of(await ask(client, body(messages, [0]), turn_headers(2, uid="lost")), 409)
        assert (error["expected"], error["received"]) == (1, 2)
    assert len(app.sessions) == 1


async def test_without_headers_one_turn_at_a_time(tokenizer: ChatTokenizer) -> None:
    latch = Latch()
    app = callback_app(latch, tokenizer=tokenizer)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        first = group.create_task(ask(client, body([QUESTION])))
        await latch.asked.wait()
        assert error_of(await ask(client, body([QUESTION])), 409)["type"] == "conflict"
        latch.open.set()
    assert first.result().status_code == 200
    assert latch.calls == 1
