"""Replays give the same rollout again, and find each thing that was changed in a result."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support import games
from tests.support.engine_channels import BOTH
from tests.support.games import RIGHT, SEED, WRONG
from tests.support.inside_worker import REPLAY, InsideWorker
from tests.support.replays import replayed, reproduced
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import ADD, ADD_COMPACT, call, say, status

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.testing import TINY_TOKENIZER

QUESTION = [{"role": "system", "content": "You calculate."}, {"role": "user", "content": "Calculate 15 + 23"}]
kinds = pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])


@pytest.fixture
async def calculated(inside: InsideWorker, tokenizer: ChatTokenizer) -> RolloutResult:
    """Three turns, two of them with a call."""
    async with scripted_trainer(tokenizer, say(ADD_COMPACT), say(ADD), say()) as trainer:
        return await inside.run_one(server_url=trainer.url, messages=QUESTION)


@kinds
@pytest.mark.parametrize("tells", [True, False], ids=["declared", "undeclared"])
@pytest.mark.parametrize("on_limit", [None, "truncate", "summarise"])
async def test_rollouts_over_a_callback(
    inside: InsideWorker,
    tokenizer: ChatTokenizer,
    tokenizers: TokenizerCache,
    keeps_ids: bool,
    tells: bool,
    on_limit: str | None,
) -> None:
    lines = (say(ADD_COMPACT), say("Again.\n" + ADD_COMPACT), say("15 + 23 is 38."), say("It is 38."))
    context = {} if on_limit is None else {"context": {"limit_tokens": 95, "on_limit": on_limit}}
    async with scripted_trainer(tokenizer, *lines, keeps_ids=keeps_ids, tells=tells) as trainer:
        result = await inside.run_one(server_url=trainer.url, messages=QUESTION, **context)
    assert result.status is RolloutStatus.COMPLETED
    await reproduced(result, tokenizers)


async def test_protocol_v1_and_unverified_ones(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    async with scripted_trainer(tokenizer, say(ADD_COMPACT), say()) as trainer:
        v1 = await inside.run_one(server_url=trainer.url, messages=QUESTION, v1=True)
    async with scripted_trainer(tokenizer, say(ADD, prompt_token_ids=...), say(prompt_token_ids=...)) as trainer:
        unverified = await inside.run_one(server_url=trainer.url, messages=QUESTION, allow_unverified=True)
    assert unverified.alignment == "unverified"
    for result in (v1, unverified):
        assert result.status is RolloutStatus.COMPLETED, result.failure
        await reproduced(result, tokenizers)


async def test_turns_that_are_not_trained_or_have_no_ids(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    steps = [{"sample": {"train": False}}, {"say": [{"role": "user", "content": "And?"}]}, {"sample": {}}]
    async with scripted_trainer(tokenizer, say("Well."), say(finish="length", stop=False)) as trainer:
        result = await inside.run_one(
            server_url=trainer.url, messages=QUESTION, agent=REPLAY, metadata={"steps": steps}
        )
    assert [set(sample.response_mask) for sample in result.samples] == [{0, 1}]
    await reproduced(result, tokenizers)
    async with scripted_trainer(tokenizer, say("Well."), say(token_ids=[], logprobs=[])) as trainer:
        result = await inside.run_one(
            server_url=trainer.url,
            messages=QUESTION,
            agent=REPLAY,
            metadata={"steps": [{"sample": {}}, *steps[1:]]},
        )
    assert [turn.sampled_tokens > 0 for turn in result.turns] == [True, False]
    await reproduced(result, tokenizers)


async def test_failed_rollouts_are_run_up_to_where_they_ended(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    async with scripted_trainer(tokenizer, say(ADD), status(500)) as trainer:
        refused = await inside.run_one(server_url=trainer.url, messages=QUESTION)
    async with scripted_trainer(tokenizer, say(calls=[call("add")] * 65)) as trainer:
        greedy = await inside.run_one(server_url=trainer.url, messages=QUESTION)
    for result in (refused, greedy):
        assert result.status is RolloutStatus.FAILED
        assert len(result.turns) == 1
        await reproduced(result, tokenizers)
    async with scripted_trainer(tokenizer, status(500)) as trainer:
        nothing = await inside.run_one(server_url=trainer.url, messages=QUESTION)
    assert nothing.replay is None
    await reproduced(nothing, tokenizers)


@BOTH
async def test_rollouts_over_an_engine(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, protocol: str, server: Any
) -> None:
    broken = '<tool_call>\n{"name": "add", "arguments": {"a": 15,\n</tool_call>'
    async with server(tokenizer, ADD_COMPACT, broken, "It is 38.") as engine:
        engine.version = "12"
        engine.abort_after(5, 0, 2)
        result = await inside.run_one(server_url=engine.url, protocol=protocol, messages=QUESTION)
        engine.finish = "length"
        cut = await inside.run_one(
            server_url=engine.url, protocol=protocol, messages=QUESTION, sampling_params={"max_tokens": 6}
        )
    for one in (result, cut):
        assert one.status is RolloutStatus.COMPLETED, one.failure
        await reproduced(one, tokenizers)
    # A changed id is parsed to another message.
    changed = result.model_copy(deep=True)
    changed.samples[0].response_ids[3] = 40
    found = (await replayed(changed, tokenizers)).differences
    assert found[0].turn == 1
    assert {"what was sampled (digest)", "ids (digest)"} <= {difference.what for difference in found}


@pytest.mark.parametrize("name", ["game_restartable", "game_snapshot", "game_none", "text_game"])
async def test_rollouts_in_an_environment(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, name: str
) -> None:
    assert games.INVITATION
    text = name == "text_game"
    lines = [say(f"{n}") if text else say(calls=[call("guess", {"number": n})]) for n in (WRONG, WRONG, RIGHT)]
    async with scripted_trainer(tokenizer, *lines) as trainer:
        result = await inside.run_one(
            server_url=trainer.url, messages=QUESTION, environment={"name": name, "seed": SEED}
        )
    assert result.environment is not None
    assert result.environment.reward == 1.0
    await reproduced(result, tokenizers)
    result.messages[4].content = "wrong at guess 9"
    assert not (await replayed(result, tokenizers)).same


def change_sampled(result: RolloutResult) -> None:
    segment = next(s for s in result.samples[0].segments if s.kind == "sampled" and s.turn == 2)
    result.samples[0].response_ids[segment.start + 1] ^= 1


def change_glue(result: RolloutResult) -> None:
    segment = next(s for s in result.samples[0].segments if s.kind == "glue")
    result.samples[0].response_ids[segment.start + segment.n - 1] ^= 1


def change_prompt(result: RolloutResult) -> None:
    result.samples[0].prompt_ids[-1] ^= 1


def change_mask(result: RolloutResult) -> None:
    segment = next(s for s in result.samples[0].segments if s.kind == "glue" and s.turn == 1)
    result.samples[0].response_mask[segment.start] = 1


def change_logprob(result: RolloutResult) -> None:
    result.samples[0].response_logprobs[0] -= 1e-9


def change_call(result: RolloutResult) -> None:
    calls = result.messages[2].tool_calls
    assert calls
    calls[0].function.name = "subtract"


def change_arguments(result: RolloutResult) -> None:
    calls = result.messages[4].tool_calls
    assert calls
    calls[0].function.arguments = '{"a": 15, "b": 24}'


def change_answer(result: RolloutResult) -> None:
    result.messages[3].content = "39"


def change_call_id(result: RolloutResult) -> None:
    result.messages[3].tool_call_id = "call_other"


def change_mask_sent(result: RolloutResult) -> None:
    assert result.turns[1].mask_sent
    result.turns[1].mask_sent += 1


def change_end(result: RolloutResult) -> None:
    result.turns[2].finish_reason = "length"


@pytest.mark.parametrize(
    ("change", "what", "turn"),
    [
        (change_sampled, "what was sampled (digest)", 2),
        (change_glue, "drift", None),
        (change_prompt, "", None),
        (change_mask, "response_mask", 1),
        (change_logprob, "what was sampled (digest)", 1),
        (change_call, "what was sampled (digest)", 1),
        (change_arguments, "what was sampled (digest)", 2),
        (change_answer, "drift", 2),
        (change_call_id, "tool_calls", 1),
        (change_mask_sent, "end", 2),
        (change_end, "finish_reason", None),
    ],
)
async def test_what_was_changed_is_found(
    calculated: RolloutResult,
    tokenizers: TokenizerCache,
    change: Callable[[RolloutResult], None],
    what: str,
    turn: int | None,
) -> None:
    await reproduced(calculated, tokenizers)
    changed = calculated.model_copy(deep=True)
    change(changed)
    assert changed != calculated
    report = await replayed(changed, tokenizers)
    assert not report.same
    assert report.differences
    first = report.differences[0]
    assert what in {difference.what for difference in report.differences} | {""}, report.differences
    assert turn is None or first.turn == turn, report.differences


async def test_results_without_a_record(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    lines = (say(ADD_COMPACT), say(ADD), say("15 + 23 is 38."), say())
    async with scripted_trainer(tokenizer, *lines) as trainer:
        plain, edited, cut = await inside.run(
            {},
            {"context": {"limit_tokens": 95, "on_limit": "truncate"}, "metadata": {"x": 1}},
            {"max_turns": 2},
            server_url=trainer.url,
            messages=QUESTION,
            replay_record=False,
        )
    assert [result.replay for result in (plain, edited, cut)] == [None] * 3
    nameless = await replayed(plain, tokenizers)
    assert "--tokenizer" in (nameless.lacks or "")
    assert not nameless.same
    for result in (plain, cut):
        named = await replayed(result, tokenizers, str(TINY_TOKENIZER))
        assert named.same, named
        assert "no record" in named.notes[0]
    changed = plain.model_copy(deep=True)
    change_mask(changed)
    assert not (await replayed(changed, tokenizers, str(TINY_TOKENIZER))).same
    if any(turn.drift == "edited" for turn in edited.turns):
        assert "edited" in ((await replayed(edited, tokenizers, str(TINY_TOKENIZER))).lacks or "")


async def test_what_cannot_be_run_again_is_said(calculated: RolloutResult, tokenizers: TokenizerCache) -> None:
    assert calculated.replay is not None
    for options, said in (
        ({"agent": "nobody's"}, "no agent"),
        ({"tokenizer_name": "/nowhere"}, "/nowhere"),
        ({"max_turns": "many"}, "max_turns"),
    ):
        changed = calculated.model_copy(deep=True)
        assert changed.replay is not None
        changed.replay.options |= options
        report = await replayed(changed, tokenizers)
        assert said in (report.lacks or ""), report
    short = calculated.model_copy(deep=True)
    del short.messages[-1]
    assert "messages of the policy" in ((await replayed(short, tokenizers)).lacks or "")
    less = calculated.model_copy(deep=True)
    less.samples.clear()
    assert "ids" in ((await replayed(less, tokenizers)).lacks or "")


async def test_other_tools_and_templates_are_noted(calculated: RolloutResult, tokenizers: TokenizerCache) -> None:
    changed = calculated.model_copy(deep=True)
    assert changed.replay is not None
    changed.replay.tools_digest = "00" * 16
    changed.tokenizer["template_sha256"] = "f" * 64
    notes = " ".join((await replayed(changed, tokenizers)).notes)
    assert "tools here are others" in notes
    assert "template_sha256 differs" in notes
