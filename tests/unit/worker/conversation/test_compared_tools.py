"""`TokenTrack` names the tools that a first prompt shows and its batch does not allow, and the other way round."""

from typing import Any

import pytest
from tests.support.conversations import reply_of, spec_of

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.tokens import MOST_COMPARED, TokenTrack

Message = dict[str, Any]

QUESTION = [{"role": "user", "content": "Calculate 15 + 23"}]


def tool(name: str, description: str) -> Message:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


ADD, SEARCH = tool("add", "Adds"), tool("search", "Looks it up")


async def opened(
    tokenizer: ChatTokenizer, allowed: list[str] | None, prompt: list[int], *, compares: bool = True
) -> TokenTrack:
    """After a first turn with this prompt."""
    spec = spec_of(tools=allowed)
    tokens = TokenTrack(spec, tokenizer, [ADD, SEARCH], TrainerKind.UNKNOWN, compares_tools=compares)
    reply = reply_of(prompt, tokenizer.encode("It is 38.<|im_end|>"))
    await tokens.ingest_reply(reply, QUESTION, AskedTurn(1), train=True)
    return tokens


@pytest.mark.parametrize(
    ("allowed", "shown", "warnings"),
    [
        (None, [ADD, SEARCH], []),
        # A batch without a list, whose task needs no tool.
        (None, [], []),
        (None, [ADD], ["tool_not_shown:search"]),
        (["add"], [ADD], []),
        (["add"], [], ["tool_not_shown:add"]),
        (["add"], [ADD, SEARCH], ["tool_not_allowed:search"]),
        (["add"], [SEARCH], ["tool_not_shown:add", "tool_not_allowed:search"]),
        ([], [], []),
        ([], [ADD], ["tool_not_allowed:add"]),
    ],
)
async def test_what_differs_is_named(
    tokenizer: ChatTokenizer, allowed: list[str] | None, shown: list[Message], warnings: list[str]
) -> None:
    prompt = tokenizer.render_prompt(QUESTION, tools=shown or None)
    assert list((await opened(tokenizer, allowed, prompt)).warnings) == warnings
    assert (await opened(tokenizer, allowed, prompt, compares=False)).warnings == ()


async def test_nothing_is_looked_for_in_a_very_long_prompt(tokenizer: ChatTokenizer) -> None:
    prompt = tokenizer.render_prompt(QUESTION)
    long = [*tokenizer.encode("7") * MOST_COMPARED, *prompt]
    assert (await opened(tokenizer, ["add"], long)).warnings == ()
    assert (await opened(tokenizer, ["add"], prompt)).warnings == ("tool_not_shown:add",)
