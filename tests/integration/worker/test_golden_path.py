"""Every golden case on the way that a rollout really takes: claim, HTTP, journal, finish.

The trainers don't say of which kind they are, and the strict ones refuse every mask but their own. Where the history
that a trainer renders is not the one that it was sent (tools or history changed behind our back), no count of ours can
be right; these cases are listed, and have to fail loudly where the trainer checks.
"""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.inside_worker import REPLAY, InsideWorker, sampled_with_mask_1
from tests.support.replays import reproduced
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import reply
from tests.tokenizers.real import real_directory, real_tokenizer

from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.options import MaskMode
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_common.rendering.checks.conformance import tokenizer_name
from rolloutpool_worker.plugins import Registry
from rolloutpool_worker.replay import run as replay_run
from rolloutpool_worker.rollout import environment, policies
from rolloutpool_worker.tools import Tool, ToolContext

pytestmark = pytest.mark.real_tokenizer

Case = dict[str, Any]

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "masks.json").read_text(encoding="utf-8"))
CASES: dict[str, Case] = {f"{case['name']}-{tokenizer_name(case)}": case for case in GOLDEN["cases"]}

UNSENDABLE = {"00-control-llama3_2", "02l-content-dropped-llama3_2", "05d-eom-vs-eot-llama3_2"}
"""A tool result that is an object: messages carry text, so the template never sees it."""
REFUSED = {"07j-parallel-calls-unsupported-llama3_2"}
"""The template takes one call per turn, and two were sampled."""
NEGATIVE = {"02k-second-call-dropped-qwen2_5", "02k-second-call-dropped-qwen3"}
"""History renders to fewer tokens than were seen and sampled: no mask says that."""
BEHIND_OUR_BACK = {
    "06b-tools-changed-qwen2_5",
    "06f-default-system-qwen2_5",
    "10a-truncate-history-qwen2_5",
    "10b-summarise-qwen2_5",
}
"""The trainer renders other tools or another history than it was sent, and another number of tokens."""

PLAYED = {name: case for name, case in CASES.items() if name not in UNSENDABLE | REFUSED}
EDITED = {
    name: case
    for name, case in PLAYED.items()
    if case["replayed_messages"]
    != [*case["initial_messages"], case["assistant_message_as_parsed"], *case["appended_messages"]]
}
played = pytest.mark.parametrize("case", PLAYED.values(), ids=PLAYED.keys())


async def no_run(_: ToolContext) -> object:
    raise AssertionError("nobody calls it")


def text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


async def run(
    inside: InsideWorker, trainer: ScriptedTrainer, case: Case, mode: MaskMode, *, edit: bool = False
) -> RolloutResult:
    appended = [{**message, "content": text(message["content"])} for message in case["appended_messages"]]
    between = {"edit": case["replayed_messages"]} if edit else {"say": appended}
    result = await inside.run_one(
        server_url=trainer.url,
        messages=case["initial_messages"],
        tokenizer_name=str(real_directory(tokenizer_name(case))),
        template_kwargs=case["template_kwargs"],
        mask_mode=mode,
        agent=REPLAY,
        metadata={"steps": [{"sample": {}}, between, {"sample": {}}]},
    )
    # However it has ended: its record gives the same rollout again.
    await reproduced(result, inside.services.tokenizers)
    return result


def second_prompt(case: Case, *, keeps_ids: bool, edit: bool = False) -> list[int]:
    """What a trainer makes of the history in turn 2."""
    whole: list[int] = case.get("expected_token_ids") or []
    kept = whole[: -len(case["sampled_ids"][1])] if keeps_ids and not edit else []
    rendered: list[int] = case.get("server_rerender_ids") or []
    return kept or rendered


def new_tokens(case: Case, *, keeps_ids: bool, edit: bool = False) -> int:
    """What it counts as new in turn 2."""
    known = 0 if edit else len(case["prompt_ids"]) + len(case["sampled_ids"][0])
    return len(second_prompt(case, keeps_ids=keeps_ids, edit=edit)) - known


def golden_trainer(
    case: Case, *, keeps_ids: bool, strict: bool = True, edit: bool = False
) -> AbstractAsyncContextManager[ScriptedTrainer]:
    """A trainer that plays the two turns of a case.

    Args:
        case: The golden case.
        keeps_ids: The trainer continues the ids that it sampled; otherwise it renders the history again.
        strict: It refuses a mask that is not as long as its own prompt demands.
        edit: The agent edits the history before turn 2.
    """
    first, second = case["sampled_ids"]
    script = [
        reply(first, prompt=case["prompt_ids"], message=case["assistant_message_as_parsed"], strict=strict),
        reply(
            second,
            prompt=second_prompt(case, keeps_ids=keeps_ids, edit=edit),
            message={"role": "assistant", "content": "done"},
            mask=new_tokens(case, keeps_ids=keeps_ids, edit=edit),
            strict=strict,
        ),
    ]
    return scripted_trainer(real_tokenizer(tokenizer_name(case)), *script)


def posts(trainer: ScriptedTrainer) -> list[tuple[str, int | None]]:
    """Key and mask length of each request."""
    return [(key, mask) for key, mask, _ in trainer.posts]


def assert_kept(result: RolloutResult, case: Case) -> None:
    """One sample, with the expected ids and mask."""
    assert result.status is RolloutStatus.COMPLETED, result.failure
    (sample,) = result.samples
    assert sample.prompt_ids + sample.response_ids == case["expected_token_ids"]
    assert [0] * len(sample.prompt_ids) + sample.response_mask == case["expected_mask"]
    assert (result.alignment, result.drift) == (Alignment.EXACT, {})


def assert_rerendered(result: RolloutResult, case: Case) -> None:
    """As many samples as expected, each true to what the trainer saw, and the expected label."""
    assert result.status is RolloutStatus.COMPLETED, result.failure
    label, count = case["expected_drift"], case["expected_samples_if_server_rerenders"]
    assert result.drift == ({} if label == "none" else {label: 1})
    assert result.turns[1].drift == label
    assert len(result.samples) == count
    first, second = case["sampled_ids"]
    last = result.samples[-1]
    assert last.prompt_ids + last.response_ids == [*case["server_rerender_ids"], *second]
    assert last.response_mask[-len(second) :] == [1] * len(second)
    if count == 2:
        assert (result.samples[0].prompt_ids, result.samples[0].response_ids) == (case["prompt_ids"], first)
        assert last.prompt_ids == case["server_rerender_ids"]
    assert sampled_with_mask_1(result.samples) == [*first, *second]
    assert result.alignment is (Alignment.EXACT if count == 1 else Alignment.FORKED)


def assert_failed(result: RolloutResult, case: Case, category: Category, kind: FailureKind) -> None:
    """Turn 2 failed so, and turn 1 is delivered with its proved mask."""
    assert result.status is RolloutStatus.FAILED
    assert result.failure is not None
    assert (result.failure.category, result.failure.kind) == (category, kind)
    assert (result.failure.turn, result.failure.retryable) == (2, False)
    (sample,) = result.samples
    assert (sample.prompt_ids, sample.response_ids) == (case["prompt_ids"], case["sampled_ids"][0])
    assert set(sample.response_mask) == {1}


@played
@pytest.mark.parametrize("mode", [MaskMode.EXACT, MaskMode.AUTO])
async def test_a_trainer_that_keeps_ids_gets_the_mask_that_it_counts(
    inside: InsideWorker, case: Case, mode: MaskMode
) -> None:
    async with golden_trainer(case, keeps_ids=True) as trainer:
        result = await run(inside, trainer, case, mode)
        assert_kept(result, case)
        exact = len(case["expected_delta_ids"])
        asked = [("1", None), ("2", exact)]
        if mode is MaskMode.AUTO and len(trainer.exchanges) == 3:
            # The other length is tried first, and refused.
            (_, (first, other), _) = posts(trainer)
            assert (first, other == exact) == ("2", False)
            asked = [("1", None), ("2", other), ("2/2", exact)]
        assert posts(trainer) == asked
        assert result.turns[1].mask_sent == exact


@played
@pytest.mark.parametrize("mode", [MaskMode.RERENDER, MaskMode.AUTO])
async def test_a_trainer_that_renders_again_gets_the_mask_that_it_counts(
    inside: InsideWorker, case: Case, mode: MaskMode
) -> None:
    name = next(name for name, known in CASES.items() if known is case)
    async with golden_trainer(case, keeps_ids=False) as trainer:
        result = await run(inside, trainer, case, mode)
        if name in NEGATIVE:
            assert_failed(result, case, Category.MASK_IMPOSSIBLE, FailureKind.POLICY)
            assert mode is MaskMode.AUTO or len(trainer.exchanges) == 1
        elif name in BEHIND_OUR_BACK:
            assert_failed(result, case, Category.MASK_REFUSED, FailureKind.INFRA)
        else:
            assert_rerendered(result, case)
            assert posts(trainer) == [("1", None), ("2", new_tokens(case, keeps_ids=False) or None)]


@played
@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
async def test_a_trainer_that_checks_nothing_is_disproved_exactly_where_it_counts_otherwise(
    inside: InsideWorker, case: Case, keeps_ids: bool
) -> None:
    async with golden_trainer(case, keeps_ids=keeps_ids, strict=False) as trainer:
        result = await run(inside, trainer, case, MaskMode.AUTO)
        (_, sent) = posts(trainer)[1]
        assert len(trainer.exchanges) == 2
        name = next(name for name, known in CASES.items() if known is case)
        if name in NEGATIVE and not keeps_ids:
            # The echo shows what our own render says too: no mask could have been right.
            assert_failed(result, case, Category.MASK_IMPOSSIBLE, FailureKind.POLICY)
        elif (sent or 0) != new_tokens(case, keeps_ids=keeps_ids):
            assert_failed(result, case, Category.MASK_DISPROVED, FailureKind.INFRA)
        elif keeps_ids:
            assert_kept(result, case)
        else:
            assert_rerendered(result, case)


# That each mode is right for the trainer that it is made for is seen above, where that one also checks the mask.
@played
@pytest.mark.parametrize(("mode", "keeps_ids"), [(MaskMode.EXACT, False), (MaskMode.RERENDER, True)])
async def test_the_samples_don_t_depend_on_the_mode(
    inside: InsideWorker, case: Case, keeps_ids: bool, mode: MaskMode
) -> None:
    name = next(name for name, known in CASES.items() if known is case)
    async with golden_trainer(case, keeps_ids=keeps_ids, strict=False) as trainer:
        result = await run(inside, trainer, case, mode)
        if mode is MaskMode.RERENDER and name in NEGATIVE:
            assert_failed(result, case, Category.MASK_IMPOSSIBLE, FailureKind.POLICY)
        elif keeps_ids:
            assert_kept(result, case)
        else:
            assert_rerendered(result, case)


@pytest.mark.parametrize("case", EDITED.values(), ids=EDITED.keys())
@pytest.mark.parametrize("mode", MaskMode)
async def test_an_edit_that_the_agent_makes_itself_is_exact(
    inside: InsideWorker, case: Case, mode: MaskMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools: Registry[Tool] = Registry("tests.golden")
    for definition in case["tools"] or ():
        tools.register(definition["function"]["name"], Tool(ToolDefinition.model_validate(definition), no_run))
    for module in (environment, policies, replay_run):
        monkeypatch.setattr(module, "TOOLS", tools)
    async with golden_trainer(case, keeps_ids=False, edit=True) as trainer:
        result = await run(inside, trainer, case, mode, edit=True)
        assert result.status is RolloutStatus.COMPLETED, result.failure
        assert posts(trainer) == [("1", None), ("2", len(case["server_rerender_ids"]))]
        assert (result.alignment, result.drift) == (Alignment.EXACT, {})
        assert [turn.drift for turn in result.turns] == ["none", "edited"]
        one, two = result.samples
        first, second = case["sampled_ids"]
        assert (one.prompt_ids, one.response_ids) == (case["prompt_ids"], first)
        assert (two.prompt_ids, two.response_ids) == (case["server_rerender_ids"], second)
        assert set(one.response_mask + two.response_mask) == {1}


@pytest.mark.parametrize("case", [CASES[name] for name in REFUSED], ids=REFUSED)
@pytest.mark.parametrize("mode", MaskMode)
async def test_a_refusal_that_sampled_content_causes_is_the_policy_s(
    inside: InsideWorker, case: Case, mode: MaskMode
) -> None:
    async with golden_trainer(case, keeps_ids=True) as trainer:
        result = await run(inside, trainer, case, mode)
        assert_failed(result, case, Category.TEMPLATE_REFUSED, FailureKind.POLICY)
        assert posts(trainer) == [("1", None)]
        assert len(result.messages) == len(case["initial_messages"]) + 1


@pytest.mark.parametrize("case", GOLDEN["multi_turn"], ids=tokenizer_name)
@pytest.mark.parametrize("mode", [MaskMode.AUTO, MaskMode.EXACT])
async def test_a_conversation_of_many_turns_is_one_exact_sample(
    inside: InsideWorker, case: Case, mode: MaskMode
) -> None:
    tokenizer = real_tokenizer(tokenizer_name(case))
    turns = case["turns"]
    prompts, context = [], case["prompt_ids"]
    for turn in turns:
        prompts.append(context)
        context = [*context, *turn["sampled"], *turn.get("delta_ids", [])]

    # Nobody parsed these messages, so a trainer that renders the history again would get other ids each turn.
    script = [
        reply(
            turn["sampled"],
            prompt=prompt,
            message={"role": "assistant", "content": tokenizer.decode(turn["sampled"])},
            mask=len(before["delta_ids"]) if before else 0,
        )
        for turn, before, prompt in zip(turns, [None, *turns], prompts, strict=False)
    ]
    steps: list[Case] = [{"sample": {}}]
    for turn in turns[:-1]:
        steps += [{"say": turn["append"]}, {"sample": {}}]
    async with scripted_trainer(tokenizer, *script) as trainer:
        result = await inside.run_one(
            server_url=trainer.url,
            messages=case["initial_messages"],
            tokenizer_name=str(real_directory(tokenizer_name(case))),
            mask_mode=mode,
            agent=REPLAY,
            metadata={"steps": steps},
        )
        assert_kept(result, case)
        await reproduced(result, inside.services.tokenizers)
        # One refusal teaches which kind it is.
        assert len(trainer.exchanges) == len(turns) + (mode is MaskMode.AUTO)
