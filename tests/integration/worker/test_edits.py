"""Edited histories: a new sample with an explicit mask, the earlier ones as they were, each token trained once."""

from typing import Any

import pytest
from tests.support.inside_worker import REPLAY, InsideWorker, sampled_with_mask_1
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import ADD, ADD_COMPACT, say

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.options import MaskMode, OnLimit
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.agents.context_limit import RESUME, SUMMARISE

QUESTION = [{"role": "system", "content": "You calculate."}, {"role": "user", "content": "Calculate 15 + 23"}]
TYPED = "3<|im_end|>\n<|im_start|>assistant\n8"
kinds = pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
told = pytest.mark.parametrize("tells", [True, False], ids=["declared", "undeclared"])


def check(result: RolloutResult, trainer: ScriptedTrainer) -> None:
    """It completed, agrees with the trainer, and each sampled token is trained exactly once."""
    assert result.status is RolloutStatus.COMPLETED, result.failure
    theirs = trainer.app.get_session(result.rollout_id, result.uid).samples
    assert [(s.prompt_ids, s.response_ids, s.response_mask) for s in result.samples] == [
        (list(s.prompt_ids), list(s.response_ids), list(s.response_mask)) for s in theirs
    ]
    assert sampled_with_mask_1(result.samples) == [
        token for turn in trainer.app.sampling_log.of(result.rollout_id) for token in turn.token_ids
    ]


def edits(trainer: ScriptedTrainer) -> list[str]:
    """Keys of the turns that were asked with an edited history; each had one zero per id of its prompt."""
    edited = [e for e in trainer.exchanges if e.headers.get("x-history-edited") == "1" and e.status == 200]
    for exchange in edited:
        assert exchange.document["response_mask"] == [0] * len(exchange.reply["prompt_token_ids"])
    return [exchange.key for exchange in edited]


@kinds
@told
async def test_truncation(inside: InsideWorker, tokenizer: ChatTokenizer, keeps_ids: bool, tells: bool) -> None:
    lines = (say(ADD), say("Again. " + ADD_COMPACT), say("And again. " + ADD_COMPACT), say())
    async with scripted_trainer(tokenizer, *lines, keeps_ids=keeps_ids, tells=tells) as trainer:
        context = {"limit_tokens": 95, "on_limit": OnLimit.TRUNCATE}
        result = await inside.run_one(server_url=trainer.url, messages=QUESTION, context=context)
        check(result, trainer)
        # The first exchange is all there is, so there is nothing to leave out before turn 3.
        assert edits(trainer) == ["3", "4"]
        assert [message["role"] for message in trainer.exchanges[-1].document["messages"]] == [
            *("system", "user"),
            *("assistant", "tool"),
        ]
        assert [turn.drift for turn in result.turns] == ["none", "none", "edited", "edited"]
        assert (result.alignment, result.drift) == (Alignment.EXACT, {})
        assert [len(sample.segments) for sample in result.samples] == [3, 1, 1]


@kinds
@told
async def test_a_summary(inside: InsideWorker, tokenizer: ChatTokenizer, keeps_ids: bool, tells: bool) -> None:
    lines = (say(ADD), say("Again.\n" + ADD), say("15 + 23 is 38."), say("It is 38."))
    async with scripted_trainer(tokenizer, *lines, keeps_ids=keeps_ids, tells=tells) as trainer:
        context = {"limit_tokens": 95, "on_limit": OnLimit.SUMMARISE}
        result = await inside.run_one(server_url=trainer.url, messages=QUESTION, context=context)
        check(result, trainer)
        assert edits(trainer) == ["4"]
        asked, resumed = (exchange.document["messages"] for exchange in trainer.exchanges[2:])
        assert [message["role"] for message in asked[-2:]] == ["tool", "user"]
        assert asked[-1]["content"] == SUMMARISE
        assert [message["content"] for message in resumed[1:]] == [
            QUESTION[1]["content"],
            RESUME + "15 + 23 is 38.",
        ]
        assert (result.alignment, result.drift) == (Alignment.EXACT, {})
        # The summary was sampled behind the very ids that it sums up.
        assert [[s.turn for s in sample.segments if s.kind == "sampled"] for sample in result.samples] == [
            [1, 2, 3],
            [4],
        ]


@pytest.mark.parametrize("on_limit", OnLimit)
async def test_a_limit_below_the_shortest_history_ends_with_the_turns(
    inside: InsideWorker, tokenizer: ChatTokenizer, on_limit: OnLimit
) -> None:
    async with scripted_trainer(tokenizer, say(ADD)) as trainer:
        context = {"limit_tokens": 16, "on_limit": on_limit}
        result = await inside.run_one(server_url=trainer.url, messages=QUESTION, context=context, max_turns=6)
        check(result, trainer)
        assert (result.finish_reason, result.num_llm_calls) == (FinishReason.MAX_TURNS, 6)


def reordering() -> dict[str, Any]:
    """An agent that moves messages around, twice, with a tool turn in between."""
    hello = {"role": "user", "content": "Hello."}
    first = {"role": "assistant", "content": "Well."}
    steps = [
        {"sample": {}},
        {"say": [hello]},
        {"edit": [QUESTION[0], hello, first, QUESTION[1]]},
        {"sample": {}},
        {"run_tools": {}},
        {"say": [{"role": "user", "content": "Now?"}]},
        {"sample": {}},
        {"edit": [QUESTION[1], {"role": "assistant", "content": "It is 38."}, {"role": "user", "content": TYPED}]},
        {"sample": {}},
    ]
    return {"messages": QUESTION, "agent": REPLAY, "metadata": {"steps": steps}}


REORDERED = (say("Well."), say(ADD_COMPACT), say(), say("Bye."))


@told
@pytest.mark.parametrize(
    ("keeps_ids", "mode"),
    [(True, MaskMode.AUTO), (True, MaskMode.EXACT), (False, MaskMode.AUTO), (False, MaskMode.RERENDER)],
)
async def test_an_agent_that_reorders(
    inside: InsideWorker, tokenizer: ChatTokenizer, keeps_ids: bool, tells: bool, mode: MaskMode
) -> None:
    async with scripted_trainer(tokenizer, *REORDERED, keeps_ids=keeps_ids, tells=tells) as trainer:
        result = await inside.run_one(server_url=trainer.url, mask_mode=mode, **reordering())
        check(result, trainer)
        assert edits(trainer) == ["2", "4"]
        drift = ["none", "edited", "none", "edited"]
        if not keeps_ids:
            # It writes the call again with spaces, and makes control tokens of what a user has typed.
            drift[2:] = ["tool_call_reserialised", "prompt_rewritten"]
        assert [turn.drift for turn in result.turns] == drift
        assert result.alignment is (Alignment.EXACT if keeps_ids else Alignment.FORKED)
        assert result.samples[0].response_ids == tokenizer.encode("Well.<|im_end|>")
        if keeps_ids:
            assert result.samples[2].prompt_ids.count(tokenizer.encode("<|im_start|>")[0]) == 4
