"""Replays give the same rollout again, and find each thing that was changed in a result."""

import shutil
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_channels import BOTH
from tests.support.games import RIGHT, SEED, WRONG, guess
from tests.support.inside_worker import REPLAY, InsideWorker
from tests.support.journals import turn_record
from tests.support.kept_journals import OF_RELEASE_0_2, kept_again
from tests.support.replays import replayed, reproduced
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import ADD, ADD_COMPACT, call, say, status

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.kept_journal import read_journal
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_common.tokens.arrays import id_bytes, pack_bytes, unpack
from rolloutpool_common.tokens.entries import SampledEntry

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
    (found,) = (await replayed(changed, tokenizers)).differences
    assert (found.what, found.sample) == ("sample 0", 0)
    # Its worker would have parsed it to another message.
    forged = kept_again(changed, result, with_other_id(result))
    found = (await replayed(forged, tokenizers)).differences[0]
    assert found.turn == 1


def with_other_id(result: RolloutResult) -> list[JournalRecord]:
    """The journal of a rollout in which the fourth id of turn 1 was 40."""
    first, *others = read_journal(result).records
    sampled = next(entry for entry in first.entries if isinstance(entry, SampledEntry))
    ids = unpack(sampled.ids, array("I"))
    ids[3] = 40
    changed = replace(sampled, ids=pack_bytes(id_bytes(ids)))
    return [replace(first, entries=tuple(changed if e is sampled else e for e in first.entries)), *others]


@pytest.mark.parametrize("name", ["game_restartable", "game_snapshot", "game_none", "text_game"])
async def test_rollouts_in_an_environment(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, name: str
) -> None:
    async with scripted_trainer(tokenizer, *(guess(name, n) for n in (WRONG, WRONG, RIGHT))) as trainer:
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


def change_prompt(result: RolloutResult) -> None:
    result.samples[0].prompt_ids[-1] ^= 1


def change_mask(result: RolloutResult) -> None:
    segment = next(s for s in result.samples[0].segments if s.kind == "glue" and s.turn == 1)
    result.samples[0].response_mask[segment.start] = 1


def change_logprob(result: RolloutResult) -> None:
    result.samples[0].response_logprobs[0] -= 1e-9


def change_segment(result: RolloutResult) -> None:
    segments = result.samples[0].segments
    segments[0] = segments[0].model_copy(update={"policy_version": "9"})


def drop_samples(result: RolloutResult) -> None:
    result.samples.clear()


def change_answer(result: RolloutResult) -> None:
    result.messages[3].content = "39"


def change_call(result: RolloutResult) -> None:
    calls = result.messages[2].tool_calls
    assert calls
    calls[0].function.name = "subtract"


def cut_transcript(result: RolloutResult) -> None:
    del result.messages[-1]


def change_end(result: RolloutResult) -> None:
    result.turns[2].finish_reason = "length"


def change_time(result: RolloutResult) -> None:
    result.turns[0].tools[0] = replace(result.turns[0].tools[0], ms=0.25)


def change_journal(result: RolloutResult) -> None:
    assert result.replay is not None
    assert result.replay.journal is not None
    middle = len(result.replay.journal) // 2
    changed = "A" if result.replay.journal[middle] != "A" else "B"
    result.replay.journal = result.replay.journal[:middle] + changed + result.replay.journal[middle + 1 :]


@pytest.mark.parametrize(
    ("change", "what", "turn"),
    [
        (change_sampled, "sample 0", None),
        (change_prompt, "sample 0", None),
        (change_mask, "response_mask", 1),
        (change_segment, "segments", None),
        (change_logprob, "sample 0", None),
        (drop_samples, "samples", None),
        (change_answer, "messages", None),
        (change_call, "messages", None),
        (cut_transcript, "messages", None),
        (change_end, "turns", None),
        (change_time, "turns", None),
        (change_journal, "replay.journal", None),
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
    assert (first.what, first.turn) == (what, turn), report.differences
    if what in {"messages", "turns", "samples", "replay.journal"}:
        # Nothing was run.
        assert (report.turns, len(report.differences)) == (0, 1)


async def test_results_without_a_journal(
    inside: InsideWorker, calculated: RolloutResult, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    async with scripted_trainer(tokenizer, say(ADD_COMPACT), say()) as trainer:
        plain = await inside.run_one(server_url=trainer.url, messages=QUESTION, replay_record=False)
    assert plain.replay is None
    older = calculated.model_copy(update={"replay": ReplayRecord.model_validate(OF_RELEASE_0_2)})
    assert calculated.replay is not None
    newer = calculated.model_copy(deep=True)
    assert newer.replay is not None
    newer.replay.journal = "/////w=="
    for result, why in ((plain, "no record"), (older, "release 0.2"), (newer, "newer release")):
        for name in (None, str(TINY_TOKENIZER)):
            report = await replayed(result, tokenizers, name)
            assert why in (report.lacks or ""), report
            assert not report.same


@pytest.mark.parametrize("name", ["branches", "messages"])
async def test_several_branches_and_messages_alone_are_not_run_again(
    calculated: RolloutResult, tokenizers: TokenizerCache, name: str
) -> None:
    records = read_journal(calculated).records
    if name == "branches":
        records, why = [*records, replace(turn_record("x"), branch=1)], "several branches"
    else:
        records, why = [replace(record, entries=()) for record in records], "no ids"
    report = await replayed(kept_again(calculated, calculated, records), tokenizers)
    assert why in (report.lacks or "")
    assert not report.same


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


async def test_other_tools_and_templates_are_noted(
    calculated: RolloutResult, tokenizers: TokenizerCache, tmp_path: Path
) -> None:
    changed = calculated.model_copy(deep=True)
    assert changed.replay is not None
    changed.replay.tools_digest = "00" * 16
    other = shutil.copytree(TINY_TOKENIZER, tmp_path / "other")
    with (other / "chat_template.jinja").open("a") as template:
        template.write("{# another version #}")
    notes = " ".join((await replayed(changed, tokenizers, str(other))).notes)
    assert "tools here are others" in notes
    assert "template_sha256 differs" in notes
