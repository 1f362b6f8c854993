"""An endpoint that shares a wrong renderer with the pool answers 422, though every echo would agree."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.support.endpoint_client import ANSWER, CALL, QUESTION, TOOLS, FixedTexts, ask, body, client_of, error_of

from rolloutpool_common.rendering import ChatTokenizer, Delta
from rolloutpool_common.rendering.full_check import RenderedDelta, check_delta
from rolloutpool_trainer.endpoint import prompt_check
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.prompt_check import PromptCheck, PromptFault

Message = dict[str, Any]
SECRET = "xyzzy"
ASKED: Message = {"role": "user", "content": f"Calculate 15 + 23 for {SECRET}"}
SAID: Message = {"role": "assistant", "content": "The result is 38."}
render_delta = ChatTokenizer.render_delta


def shortened(self: ChatTokenizer, *given: Any, **more: Any) -> Delta:
    """Loses the first token of what follows a turn, as a separator was lost once."""
    delta = render_delta(self, *given, **more)
    return replace(delta, glue_ids=delta.glue_ids[1:])


def another_id(self: ChatTokenizer, *given: Any, **more: Any) -> Delta:
    """Has another token of the same length, which no mask can show."""
    delta = render_delta(self, *given, **more)
    return replace(delta, glue_ids=(*delta.glue_ids[:-1], delta.glue_ids[-1] + 1))


@pytest.mark.parametrize("wrong", [shortened, another_id])
async def test_a_wrong_prompt_is_refused_and_named_without_its_text(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(ChatTokenizer, "render_delta", wrong)
    app = callback_app(FixedTexts(tokenizer, ANSWER, ANSWER), tokenizer=tokenizer, strict=False)
    async with client_of(app) as client:
        first = await ask(client, body([ASKED]))
        message = first.json()["choices"][0]["message"]
        for _ in range(2):  # it stays refused, and nothing was sampled
            error = error_of(await ask(client, body([ASKED, message, ASKED])), 422)
            assert error["type"] == "prompt_mismatch"
            assert error["position"] >= len(first.json()["prompt_token_ids"])
            assert error["ours"] != error["rendered"]
            assert app.get_session("r").turns == 1
    assert SECRET not in error["message"]
    assert SECRET not in caplog.text
    assert "not what the chat template writes" in caplog.text


async def test_a_trainer_that_renders_again_has_nothing_to_check(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_check, "check_delta", None)
    app = callback_app(FixedTexts(tokenizer, ANSWER, ANSWER), tokenizer=tokenizer, strict=False, keeps_ids=False)
    async with client_of(app) as client:
        message = (await ask(client, body([ASKED]))).json()["choices"][0]["message"]
        assert (await ask(client, body([ASKED, message, ASKED]))).status_code == 200


class Counted:
    """Plays turns through a check, and says which of them it looked at."""

    def __init__(self, tokenizer: ChatTokenizer, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self.right = True
        self._tokenizer = tokenizer
        self._check = PromptCheck(tokenizer, {}, every)
        real = check_delta

        def noted(*given: Any, **more: Any) -> Any:
            self.looks += 1
            return real(*given, **more)

        monkeypatch.setattr(prompt_check, "check_delta", noted)

    def turn(self, messages: list[Message], tools: list[Message] | None = None) -> int:
        """How many looks there were by then."""
        sampled = self._tokenizer.encode(CALL if messages[-2].get("tool_calls") else ANSWER)
        delta = self._tokenizer.render_delta(messages[-1:], sampled=sampled, history=messages[:-1], tools=tools)
        if not self.right:
            delta = replace(delta, glue_ids=delta.glue_ids[1:])
        self._check.check(RenderedDelta(messages, 1, delta, sampled), tools=tools, prompt=100)
        return self.looks


def test_the_first_turn_of_a_shape_is_checked_and_then_every_so_many(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Counted(tokenizer, 4, monkeypatch)
    assert [turns.turn([QUESTION, SAID, ASKED]) for _ in range(9)] == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    once = Counted(tokenizer, 0, monkeypatch)
    assert [once.turn([QUESTION, SAID, ASKED]) for _ in range(9)] == [1] * 9
    always = Counted(tokenizer, 1, monkeypatch)
    assert [always.turn([QUESTION, SAID, ASKED]) for _ in range(3)] == [1, 2, 3]


def test_what_a_template_can_tell_apart_is_another_shape(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Counted(tokenizer, 1000, monkeypatch)
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "38"}
    system = {"role": "system", "content": "Be kind."}
    conversations = [
        [QUESTION, SAID, ASKED],
        [system, QUESTION, SAID, ASKED],
        [QUESTION, SAID, ASKED, SAID, ASKED],
        [QUESTION, SAID, ASKED, SAID, ASKED, SAID, ASKED],
        [QUESTION, calling, result],
        [QUESTION, {**calling, "content": "I add."}, result],
        [QUESTION, {**SAID, "reasoning_content": "I add."}, ASKED],
    ]
    assert [turns.turn(messages) for messages in conversations] == [1, 2, 3, 4, 5, 6, 7]
    assert [turns.turn(messages) for messages in conversations] == [7] * 7
    assert turns.turn(conversations[4], TOOLS) == 8
    # A longer one is of the shape of three rounds.
    assert turns.turn([*[QUESTION, SAID] * 9, ASKED]) == 8


def test_a_shape_that_failed_is_checked_again(tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Counted(tokenizer, 1000, monkeypatch)
    turns.right = False
    for looks in (1, 2):
        with pytest.raises(PromptFault):
            turns.turn([QUESTION, SAID, ASKED])
        assert turns.looks == looks
    turns.right = True
    assert [turns.turn([QUESTION, SAID, ASKED]) for _ in range(3)] == [3, 3, 3]


def test_a_negative_number_is_refused(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(ValueError, match="check_every"):
        callback_app(FixedTexts(tokenizer), tokenizer=tokenizer, check_every=-1)
