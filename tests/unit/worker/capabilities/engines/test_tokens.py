"""The ledger as an engine's prompt: its text is its ids, whatever has happened to it."""

from typing import Any

import orjson
import pytest
from tests.support.conversations import spec_of

from rolloutpool_common.errors import TemplateUnusable, TrainerProtocolError
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.rendering import ChatTokenizer, TurnParser
from rolloutpool_worker.capabilities.engines.tokens import EngineTokens
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.policy.reply import Reply, SampledPart

ASK = [{"role": "user", "content": "Calculate 5 + 3"}]
MORE = [{"role": "user", "content": "And 4 more?"}]


@pytest.fixture
def tokens(tokenizer: ChatTokenizer) -> EngineTokens:
    return EngineTokens(spec_of(), tokenizer, [], TurnParser.of(tokenizer, []))


def reply(*parts: SampledPart) -> Reply:
    fields: dict[str, Any] = dict.fromkeys(
        ("message", "finish_reason", "prompt_token_ids", "policy_version", "keeps_ids", "fingerprint")
    )
    return Reply(
        **fields,
        prefix=0,
        token_ids=[token for part in parts for token in part.ids],
        logprobs=[logprob for part in parts for logprob in part.logprobs],
        parts=parts,
    )


async def ingest(tokens: EngineTokens, turn: int, *parts: SampledPart, edited: bool = False) -> DriftLabel:
    return (await tokens.ingest_reply(reply(*parts), ASK, AskedTurn(turn, edited=edited), train=True)).label


def part(*ids: int, version: str | None = None) -> SampledPart:
    return SampledPart(list(ids), [-0.5] * len(ids), version)


def check_prompt(tokens: EngineTokens) -> None:
    prompt = tokens.prompt()
    assert orjson.loads(b"[%b]" % prompt.text) == tokens.ledger.ids
    assert prompt.length == len(tokens.ledger)


async def test_an_image_that_was_stored_ends_the_rollout(tokens: EngineTokens) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "base64"}}]}]
    says = r"turn 1: the prompt: A message of the role user has content\[0\]: type image_url; only text is supported"
    with pytest.raises(TemplateUnusable, match=says):
        await tokens.open(image)
    await tokens.open(ASK)
    await ingest(tokens, 1, part(5))
    # The policy has not written it, so it is not the policy's fault.
    with pytest.raises(TemplateUnusable, match="turn 1: A message of the role user has"):
        await tokens.append(image, ASK, 1)


async def test_another_worker_has_the_same_prompt(tokens: EngineTokens, tokenizer: ChatTokenizer) -> None:
    await tokens.open(ASK)
    await ingest(tokens, 1, part(5, version="3"), part(6, version="4"))
    await tokens.append(MORE, ASK, 1)
    again = EngineTokens(spec_of(), tokenizer, [], TurnParser.of(tokenizer, []))
    again.ledger.absorb(tokens.ledger.entries)
    again.resume(TrainerKind.KEEPS_IDS, ASK)
    assert again.prompt() == tokens.prompt()
    assert again.prompt().first_version == "3"
    await ingest(again, 2, part(7))
    check_prompt(again)


async def test_a_reply_with_an_id_beyond_the_vocabulary_leaves_nothing(
    tokens: EngineTokens, tokenizer: ChatTokenizer
) -> None:
    await tokens.open(ASK)
    with pytest.raises(TrainerProtocolError):
        await ingest(tokens, 1, part(5), part(tokenizer.vocab_size))
    assert tokens.ledger.samples() == []
    check_prompt(tokens)


async def test_a_group_renders_its_prompt_once(tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else makes another prompt is in the tests of `shared_prompts`."""
    rendered: list[Any] = []
    render = ChatTokenizer.render_prompt

    def counting(self: ChatTokenizer, messages: Any, **options: Any) -> list[int]:
        rendered.append(messages)
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTokenizer, "render_prompt", counting)
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    asked = [{"role": "user", "content": "Only in this test."}]
    for times, tools in ((1, [tool]), (1, [tool]), (2, [])):
        opened = EngineTokens(spec_of(), tokenizer, tools, TurnParser.of(tokenizer, tools))
        await opened.open(asked)
        assert opened.ledger.ids == render(tokenizer, asked, tools=tools or None)
        # What a rollout appends is its own.
        await ingest(opened, 1, part(5))
        assert len(rendered) == times
