"""`TokenTrack`, fed with replies as the channel gives them."""

import asyncio
import threading
from typing import Any

import orjson
import pytest
from tests.support.conversations import reply_of, spec_of

from rolloutpool_common.errors import (
    AlignmentUnverified,
    RolloutError,
    TemplateRefusedTurn,
    TokenizerMismatch,
    TrainerProtocolError,
)
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn, TrainerKind
from rolloutpool_common.protocol.options import MaskMode
from rolloutpool_common.protocol.result import StopToken
from rolloutpool_common.rendering import ChatTokenizer, RerenderCounter, rerender
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.conversation import tokens as token_track
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.off_loop import OFF_LOOP
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy.repeated_echo import WORTH_BYTES, EchoText, read

Message = dict[str, Any]

QUESTION = [{"role": "user", "content": "Calculate 15 + 23"}]
ANSWER = {"role": "assistant", "content": "It is 38."}
MORE = [{"role": "user", "content": "Sure?"}]
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {}}},
}


def track(tokenizer: ChatTokenizer, *, tools: list[Message] | None = None, **spec: Any) -> TokenTrack:
    return TokenTrack(spec_of(**spec), tokenizer, tools or [], TrainerKind.UNKNOWN)


def said(tokenizer: ChatTokenizer, text: str = "It is 38.") -> list[int]:
    return tokenizer.encode(text + "<|im_end|>")


async def opened(tokenizer: ChatTokenizer, *, messages: list[Message] = QUESTION, **options: Any) -> TokenTrack:
    """With one turn, and one user message behind it."""
    tokens = track(tokenizer, **options)
    first = reply_of(tokenizer.render_prompt(messages), said(tokenizer))
    assert (await tokens.ingest_reply(first, messages, AskedTurn(1), train=True)).label == "none"
    await tokens.append(MORE, [*QUESTION, ANSWER], 1)
    return tokens


def echo_of(data: bytes, known: EchoText | None = None) -> dict[str, Any]:
    """What `parse_reply` finds of the prompt's ids in this reply."""
    document, repeated, text = read(data, known)
    return {"prompt": document["prompt_token_ids"], "repeated": repeated, "echo_text": text}


def echoing(ids: list[int]) -> bytes:
    return orjson.dumps({"prompt_token_ids": ids, "padding": "x" * WORTH_BYTES})


async def test_the_text_of_an_echo_is_known_until_the_history_is_edited(tokenizer: ChatTokenizer) -> None:
    tokens, history = track(tokenizer), list(QUESTION)
    prompt = tokenizer.render_prompt(QUESTION)
    assert tokens.known_echo() is None
    for turn in (1, 2, 3):
        known = tokens.known_echo()
        assert (known is None) == (turn == 1)
        found = reply_of(ids=said(tokenizer), **echo_of(echoing(prompt), known))
        assert found.skipped == (0 if known is None else known.ids)
        plan = MaskPlan((n := max(tokens.ledger.pending_glue, 1),), n, n) if turn > 1 else None
        asked = AskedTurn(turn, plan, None if plan is None else plan.exact)
        assert (await tokens.ingest_reply(found, history, asked, train=True)).label == "none"
        assert tokens.ledger.ids == [*prompt, *said(tokenizer)]
        known = tokens.known_echo()
        assert known is not None
        assert known.ids == len(prompt)
        history += [ANSWER, *MORE]
        await tokens.append(MORE, history[:-1], turn)
        assert tokens.known_echo() == known
        prompt = tokens.ledger.ids
    await tokens.replace(MORE, 3)
    assert tokens.known_echo() is None
    # Also where the edited history is as long as the old one.
    await tokens.replace([*MORE, *history], 3)
    assert len(tokens.ledger) > len(prompt)
    assert tokens.known_echo() is None


async def test_an_echo_that_forks_behind_a_known_text_forks_there(tokenizer: ChatTokenizer) -> None:
    tokens = track(tokenizer)
    prompt = tokenizer.render_prompt(QUESTION)
    first = reply_of(ids=said(tokenizer), **echo_of(echoing(prompt)))
    await tokens.ingest_reply(first, QUESTION, AskedTurn(1), train=True)
    await tokens.append(MORE, [*QUESTION, ANSWER], 1)
    history = [*QUESTION, {"role": "assistant", "content": "It was 38."}, *MORE]
    theirs = rerender(tokenizer, history)
    assert theirs[: len(prompt)] == prompt
    second = reply_of(ids=said(tokenizer), **echo_of(echoing(theirs), tokens.known_echo()))
    assert second.repeated == len(prompt)
    sent = len(theirs) - tokens.ledger.head
    asked = AskedTurn(2, MaskPlan((sent,), tokens.ledger.pending_glue, sent), sent)
    assert (await tokens.ingest_reply(second, history, asked, train=True)).label == "assistant_text_changed"
    assert tokens.kind is TrainerKind.RERENDERS
    assert tokens.ledger.ids == [*theirs, *said(tokenizer)]
    assert [sample.prompt_ids for sample in tokens.ledger.samples()] == [prompt, theirs]
    known = tokens.known_echo()
    assert known is not None
    assert known.ids == len(theirs)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"prompt_token_ids": []}, TrainerProtocolError, "prompt_token_ids is empty"),
        ({"prompt_token_ids": [4096]}, TokenizerMismatch, "http://trainer:8081 has id 4096"),
        ({"prompt_token_ids": None}, AlignmentUnverified, "turn 1"),
        ({"prompt_token_ids": [1, 2, 3]}, TokenizerMismatch, "does not contain the messages at"),
        ({"token_ids": [4096], "logprobs": [-1.0]}, TrainerProtocolError, "token_ids has an id outside"),
        ({"fingerprint": "a/b/c/my%2Fm"}, TokenizerMismatch, r"8081 has another tokenizer .'my/m', tr.*; and chat"),
    ],
)
async def test_what_turn_1_must_prove(
    tokenizer: ChatTokenizer, changes: dict[str, Any], error: type[RolloutError], says: str
) -> None:
    tokens = track(tokenizer)
    good = tokenizer.render_prompt(QUESTION)
    bad = reply_of(changes.get("prompt_token_ids", good), said(tokenizer), **changes)
    with pytest.raises(error, match=says) as caught:
        await tokens.ingest_reply(bad, QUESTION, AskedTurn(1), train=True)
    assert "Calculate" not in caught.value.message
    assert tokens.ledger.samples() == []
    if error is TokenizerMismatch:
        assert tokenizer.fingerprint.tokenizer_sha256[:12] in caught.value.message


async def test_another_version_of_transformers_alone_is_no_mismatch(tokenizer: ChatTokenizer) -> None:
    ours = tokenizer.fingerprint
    tokens = track(tokenizer)
    fingerprint = f"{ours.tokenizer_sha256}/{ours.template_sha256}/1.0"
    good = reply_of(tokenizer.render_prompt(QUESTION), said(tokenizer), fingerprint=fingerprint)
    assert (await tokens.ingest_reply(good, QUESTION, AskedTurn(1), train=True)).label == "none"


@pytest.mark.parametrize("field", ["prompt_token_ids", "token_ids"])
async def test_ids_stay_in_the_vocabulary(tokenizer: ChatTokenizer, field: str) -> None:
    tokens = await opened(tokenizer)
    before = tokens.ledger.entries
    # The prompt differs, so the ledger would follow it.
    prompt, ids = [*tokens.ledger.ids[:-1], 5], said(tokenizer)
    (prompt if field == "prompt_token_ids" else ids)[-1] = 4096
    with pytest.raises(TrainerProtocolError, match=f"turn 2: {field} has an id outside"):
        await tokens.ingest_reply(reply_of(prompt, ids), [], AskedTurn(2), train=True)
    assert tokens.ledger.entries == before


@pytest.mark.parametrize("hidden", [[TOOL], []], ids=["tools", "nothing"])
async def test_what_the_trainer_s_prompt_has_more_than_ours_is_counted_too(
    tokenizer: ChatTokenizer, hidden: list[Message]
) -> None:
    tokens = track(tokenizer, mask_mode=MaskMode.RERENDER)
    shown = hidden or None
    prompt = rerender(tokenizer, QUESTION, tools=shown)
    await tokens.ingest_reply(reply_of(prompt, said(tokenizer, "It  is 38.")), QUESTION, AskedTurn(1), train=True)
    await tokens.append(MORE, [*QUESTION, ANSWER], 1)
    history = [*QUESTION, ANSWER, *MORE]
    theirs = rerender(tokenizer, history, tools=shown)
    plan = await tokens.plan_mask(history, 2)
    assert plan.lengths == (len(theirs) - tokens.ledger.head,)
    edited = [*MORE, ANSWER, *QUESTION]
    await tokens.replace(edited, 1)
    plan = await tokens.plan_mask(edited, 2, edited=True)
    assert plan.lengths == (len(rerender(tokenizer, edited, tools=shown)),)
    assert plan.exact == plan.lengths[0]


async def test_messages_that_come_later_are_rendered_with_those_before_them(tokenizer: ChatTokenizer) -> None:
    once, twice = track(tokenizer), track(tokenizer)
    for tokens, parts in ((once, [[*MORE, *QUESTION]]), (twice, [MORE, [*MORE, *QUESTION]])):
        ids = said(tokenizer)[:-1]  # without its stop token, so that one is put in
        await tokens.ingest_reply(reply_of(tokenizer.render_prompt(QUESTION), ids), QUESTION, AskedTurn(1), train=True)
        for part in parts:
            await tokens.append(part, [*QUESTION, ANSWER], 1)
    assert once.ledger.ids == twice.ledger.ids
    assert once.ledger.pending_glue == twice.ledger.pending_glue
    assert TokenLedger.replay(twice.ledger.entries, fingerprint=tokenizer.fingerprint) == twice.ledger


async def test_a_refusal_that_an_ordinary_result_does_not_meet_is_the_policy_s(tokenizer: ChatTokenizer) -> None:
    tokens = await opened(tokenizer)
    with pytest.raises(TemplateRefusedTurn, match="turn 1"):
        await tokens.append([ANSWER], [*QUESTION, ANSWER], 1)


@pytest.mark.parametrize(
    ("messages", "in_thread"),
    [
        ([{"role": "user", "content": "1" * 100}], False),
        ([{"role": "user", "content": "1" * (OFF_LOOP + 1)}], True),
        (MORE * 100, True),
    ],
    ids=["short", "long", "many short ones"],
)
async def test_much_text_is_tokenised_off_the_loop(
    tokenizer: ChatTokenizer, messages: list[Message], in_thread: bool
) -> None:
    tokens = track(tokenizer)
    first = reply_of(tokenizer.render_prompt(QUESTION), said(tokenizer))
    await tokens.ingest_reply(first, QUESTION, AskedTurn(1), train=True)
    task = asyncio.create_task(tokens.append(messages, [*QUESTION, ANSWER], 1))
    await asyncio.sleep(0)
    # Without a thread it has nothing to wait for.
    assert task.done() is not in_thread
    await task
    assert tokens.ledger.pending_glue > 100


@pytest.mark.parametrize(
    ("keeps", "kind", "lengths"),
    [(True, TrainerKind.KEEPS_IDS, []), (None, TrainerKind.UNKNOWN, [1, 3]), (False, TrainerKind.RERENDERS, [1, 3])],
)
async def test_only_who_may_render_again_has_its_prompt_looked_at(
    tokenizer: ChatTokenizer,
    keeps: bool | None,
    kind: TrainerKind,
    lengths: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two renders are a tenth of what a short rollout costs; where ids are kept nothing depends on them."""
    counted: list[int] = []
    count = RerenderCounter.count

    def noted(self: RerenderCounter, messages: Any, **options: Any) -> int:
        counted.append(len(messages))
        return count(self, messages, **options)

    monkeypatch.setattr(RerenderCounter, "count", noted)
    tokens = track(tokenizer)
    first = reply_of(tokenizer.render_prompt(QUESTION), said(tokenizer), keeps_ids=keeps)
    await tokens.ingest_reply(first, QUESTION, AskedTurn(1), train=True)
    await tokens.append(MORE, [*QUESTION, ANSWER], 1)
    plan = await tokens.plan_mask([*QUESTION, ANSWER, *MORE], 2)
    assert (tokens.kind, plan.exact) == (kind, tokens.ledger.pending_glue)
    assert counted == lengths


async def test_a_long_first_prompt_is_looked_at_off_the_loop(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the history that is rendered then."""
    threads: list[threading.Thread] = []
    count = RerenderCounter.count

    def noted(self: RerenderCounter, messages: Any, **options: Any) -> int:
        threads.append(threading.current_thread())
        return count(self, messages, **options)

    monkeypatch.setattr(RerenderCounter, "count", noted)
    long = [{"role": "user", "content": "15 + 23? " * OFF_LOOP}]
    tokens = track(tokenizer)
    first = reply_of(tokenizer.render_prompt(long), said(tokenizer), keeps_ids=True)
    await tokens.ingest_reply(first, long, AskedTurn(1), train=True)
    assert not threads
    await tokens.replace(QUESTION, 1)
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("wrong", [-1, 1])
async def test_a_wrong_increment_is_counted_anew_once_the_trainer_has_refused_it(
    tokenizer: ChatTokenizer, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await opened(tokenizer)
    history = [*QUESTION, ANSWER, *MORE]
    await tokens.append(MORE, [*QUESTION, ANSWER], 1)
    right = len(rerender(tokenizer, history)) - tokens.ledger.head
    monkeypatch.setattr(RerenderCounter, "count_new", lambda *_: tokens.ledger.head + right + wrong)
    plan = await tokens.plan_mask(history, 2)
    assert right + wrong in plan.lengths
    again = await tokens.replan(history, PlannedTurn(plan, "digest"))
    assert (again.rerender, set(again.lengths) | set(plan.lengths)) == (right, {right, right + wrong, plan.exact})
    # What was counted whole is not counted again.
    monkeypatch.setattr(RerenderCounter, "count_new", lambda *_: None)
    assert (await tokens.replan(history, PlannedTurn(await tokens.plan_mask(history, 2), "digest"))).lengths == ()


async def test_a_huge_message_is_counted_only_after_a_refusal(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_track, "MOST_COUNTED", 1000)
    tokens = await opened(tokenizer)
    huge = [{**MORE[0], "content": "a long result " * 100}]
    history = [*QUESTION, ANSWER, *huge]
    await tokens.append(huge, [*QUESTION, ANSWER], 1)
    plan = await tokens.plan_mask(history, 2)
    assert plan == MaskPlan((tokens.ledger.pending_glue,), tokens.ledger.pending_glue, None)
    right = len(rerender(tokenizer, history)) - tokens.ledger.head
    again = await tokens.replan(history, PlannedTurn(plan, "digest"))
    assert again.rerender == right
    assert set(again.lengths) | set(plan.lengths) == {right, plan.exact}


@pytest.mark.parametrize("mode", [MaskMode.EXACT, MaskMode.RERENDER])
async def test_a_batch_that_names_its_mask_has_no_second_one(tokenizer: ChatTokenizer, mode: MaskMode) -> None:
    tokens = await opened(tokenizer, mask_mode=mode)
    history = [*QUESTION, {"role": "assistant", "content": "It  is 38."}, *MORE]
    planned = PlannedTurn(await tokens.plan_mask(history, 2), "digest")
    assert (await tokens.replan(history, planned)).lengths == ()


@pytest.mark.parametrize(
    ("text", "finish", "stop"),
    [
        ("38<|im_end|>", "stop", StopToken.SAMPLED),
        ("38<|im_end|>", "length", StopToken.SAMPLED),
        ("38", "stop", StopToken.WITHHELD),
        ("38", "length", StopToken.ABSENT),
    ],
)
def test_how_a_turn_ends_shows_in_its_ids(tokenizer: ChatTokenizer, text: str, finish: str, stop: StopToken) -> None:
    assert track(tokenizer).stop_of(reply_of(None, tokenizer.encode(text), finish_reason=finish)) is stop
