"""First prompts are shared by rollouts that would render the same, and by no others."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.conversations import reply_of, spec_of

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_worker.conversation import shared_prompts
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.shared_prompts import SharedPrompts
from rolloutpool_worker.conversation.tokens import TokenTrack

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Calculate 15 + 23"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {}}}


class CountingTokenizer(ChatTokenizer):
    """Counts how often a prompt is rendered."""

    renders = 0

    def render_prompt(self, *args: Any, **kwargs: Any) -> list[int]:
        type(self).renders += 1
        return super().render_prompt(*args, **kwargs)


@pytest.fixture
def tokenizer() -> Iterator[ChatTokenizer]:
    loaded = load_tokenizer(str(TINY_TOKENIZER))
    CountingTokenizer.renders = 0
    loaded.__class__ = CountingTokenizer
    yield loaded
    loaded.__class__ = ChatTokenizer


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpool_worker.conversation.tokens.SHARED_PROMPTS", SharedPrompts())


async def opened(tokenizer: ChatTokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> TokenTrack:
    """Opens a ledger with the reply of a trainer that gives no prompt ids."""
    tokens = TokenTrack(spec_of(allow_unverified=True), tokenizer, tools, TrainerKind.KEEPS_IDS)
    await tokens.ingest_reply(reply_of(None, [5]), messages, AskedTurn(1), train=True)
    return tokens


async def test_a_group_renders_its_prompt_once_and_each_ledger_goes_its_own_way(tokenizer: ChatTokenizer) -> None:
    first = await opened(tokenizer, ASK, [TOOL])
    first.ledger.append_glue([7, 7], turn=1)
    second = await opened(tokenizer, [dict(ASK[0])], [dict(TOOL)])
    assert CountingTokenizer.renders == 1
    prompt = tokenizer.render_prompt(ASK, tools=[TOOL])
    assert first.ledger.ids == [*prompt, 5, 7, 7]
    assert second.ledger.ids == [*prompt, 5]


OTHERS = {
    "messages": ([{"role": "user", "content": "Calculate 15 + 24"}], [TOOL]),
    "role": ([{"role": "system", "content": "Calculate 15 + 23"}, *ASK], [TOOL]),
    "tools": (ASK, [{"type": "function", "function": {"name": "sum", "description": "Adds", "parameters": {}}}]),
    "order of a tool's members": (
        ASK,
        [{"function": {"parameters": {}, "description": "Adds", "name": "add"}, "type": "function"}],
    ),
    "no tools": (ASK, []),
}


@pytest.mark.parametrize(("messages", "tools"), OTHERS.values(), ids=OTHERS)
async def test_what_renders_otherwise_is_another_prompt(
    tokenizer: ChatTokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    await opened(tokenizer, ASK, [TOOL])
    other = await opened(tokenizer, messages, tools)
    assert CountingTokenizer.renders == 2
    assert other.ledger.ids == [*tokenizer.render_prompt(messages, tools=tools or None), 5]


def test_long_ones_are_not_kept_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompts, "LONGEST_KEPT", 10)
    monkeypatch.setattr(shared_prompts, "KEPT_IDS", 250)
    prompts = SharedPrompts()
    prompts.keep(("long",), list(range(11)))
    for name in "abc":
        prompts.keep((name,), list(range(10)))
    prompts.keep(None, [1])
    assert [prompts.find((name,)) is not None for name in ("long", "a", "b", "c")] == [False, False, True, True]
    assert prompts.find(None) is None


def test_a_template_that_prints_the_date_and_what_json_has_no_words_for_have_no_name(tokenizer: ChatTokenizer) -> None:
    assert SharedPrompts.key(tokenizer, ASK, None, None) is not None
    assert SharedPrompts.key(tokenizer, ASK, [{"n": 2**70}], None) is None


async def test_a_date_is_rendered_anew(tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatTokenizer, "reads_clock", property(lambda _: True))
    await opened(tokenizer, ASK, [])
    await opened(tokenizer, ASK, [])
    assert CountingTokenizer.renders == 2
