"""Every family of ours under three kinds of trainers that somebody else could have written: exact, or refused rightly.

The trainer shares no line with the pool (`tests.support.foreign_trainer`), so an echo that agrees proves something.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.property.families import FAMILIES, Family, lay_out
from tests.support.foreign_trainer import ForeignKind, ForeignTrainer, ForeignTurn, foreign_trainer
from tests.support.inside_worker import REPLAY, InsideWorker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_worker.conversation import trainer_kinds
from rolloutpool_worker.plugins import Registry
from rolloutpool_worker.rollout import environment, policies
from rolloutpool_worker.tools import Tool, ToolContext

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "x"}}},
    },
}
STEPS = [
    *[{"sample": {}}, {"run_tools": {}}] * 2,
    {"sample": {}},
    {"say": [{"role": "user", "content": "And now?"}]},
    {"sample": {}},
    {"say": [{"role": "user", "content": "Sure?"}]},
    {"sample": {}},
]
NEVER_SERVED = {("wants_objects", ForeignKind.RENDERS_TEXT)}
"""No trainer of this kind can serve this family: the template raises an error."""


@pytest.fixture(autouse=True)
def one_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        return f"{arguments['a']} and 23 make 38"

    tools: Registry[Tool] = Registry("tests.foreign")
    tools.register("add", Tool(ToolDefinition.model_validate(ADD), run))
    for module in (environment, policies):
        monkeypatch.setattr(module, "TOOLS", tools)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return dict(lay_out(tmp_path_factory.mktemp("families")))


def script(family: Family, *, stops: bool, spelled: str) -> list[ForeignTurn]:
    """Two calls and three answers; `spelled` is how the policy writes the call's arguments."""

    def call(number: int) -> ForeignTurn:
        function = {"name": "add", "arguments": spelled}
        made = {"id": f"call0000{number}", "type": "function", "function": function}
        text = family.call.replace("{}", spelled) + (stop or family.call_ends[0]) * stops
        return ForeignTurn(text, {"role": "assistant", "content": "", "tool_calls": [made]})

    def answer(text: str) -> ForeignTurn:
        whole = "".join(family.special) if family.special[-2:] == ("<|end_text|>", "<|end_turn|>") else ""
        end = "<|end_text|><|end_turn|>" if whole else stop or family.answer_ends[0]
        return ForeignTurn(text + end * stops, {"role": "assistant", "content": text})

    stop = family.stop
    return [call(1), call(2), answer("<think>hm</think>I say 38"), answer("Yes, 38 it is"), answer("Sure")]


def proved(result: RolloutResult, trainer: ForeignTrainer) -> None:
    """Each turn is trained once, after what the policy really saw."""
    assert result.status is RolloutStatus.COMPLETED, result.failure
    log = trainer.log[result.uid]
    assert len(log) == 5
    places = []
    for turn in log:
        seen = [*turn.prompt, *turn.sampled]
        (place,) = (
            number
            for number, sample in enumerate(result.samples)
            if [*sample.prompt_ids, *sample.response_ids][: len(seen)] == seen
            and (mask := [*[0] * len(sample.prompt_ids), *sample.response_mask])
            and mask[len(turn.prompt) : len(seen)] == [1] * len(turn.sampled)
        )
        places.append(place)
    assert places == sorted(places)
    assert sum(sum(sample.response_mask) for sample in result.samples) == sum(len(turn.sampled) for turn in log)


CASES = [
    # system message, whether tools are shown, whether stops are sampled, how the policy spells arguments
    ("Be kind.", True, True, '{"a":"15"}'),
    ("Be kind. /no_think", True, False, '{"a": "15"}'),
    ("Be kind. /no_think", False, True, '{"a": "\\u00e9"}'),
    ("Be kind.", False, False, '{"a":"15"}'),
]


@pytest.mark.parametrize("kind", ForeignKind)
@pytest.mark.parametrize("name", FAMILIES)
async def test_each_construct_is_exact(
    inside: InsideWorker, directories: dict[str, Path], name: str, kind: ForeignKind
) -> None:
    if (name, kind) in NEVER_SERVED:
        pytest.skip("no trainer can serve this")
    family, directory = FAMILIES[name], directories[f"family:{name}"]
    tools = [ToolDefinition.model_validate(ADD).model_dump(exclude_none=True)]
    for system, shown, stops, spelled in CASES:
        ends = (family.answer_ends[0], family.call_ends[0])
        given = tools if shown or family.needs_tools else None
        turns = script(family, stops=stops, spelled=spelled)
        with foreign_trainer(directory, kind, turns, tools=given, ends=ends, stop=family.stop) as trainer:
            spec = {
                "server_url": trainer.url,
                "tokenizer_name": str(directory),
                "messages": [{"role": "system", "content": system}, {"role": "user", "content": "15 + 23?"}],
                "agent": REPLAY,
                "metadata": {"steps": STEPS},
            }
            (first,) = await inside.run(spec)
            proved(first, trainer)
            # What was learned holds: another rollout costs no refusal.
            before = trainer.refused
            (second,) = await inside.run(spec)
            proved(second, trainer)
            assert before <= 2
            assert trainer.refused == before


def plain(*, drifts: bool) -> list[ForeignTurn]:
    """Five answers; the policy of one that drifts says what is parsed to another text, with fewer ids."""
    said = [f"It is {n}" for n in range(5)]
    return [ForeignTurn(f"{text}{'   ?!' * drifts}<|im_end|>", {"role": "assistant", "content": text}) for text in said]


@pytest.mark.parametrize("kind", [ForeignKind.RENDERS_TEXT, ForeignKind.RENDERS_PARSED])
@pytest.mark.parametrize("strict", [True, False])
async def test_a_trainer_that_changes_its_manners_loses_few_rollouts_and_gets_no_wrong_mask(
    inside: InsideWorker, directories: dict[str, Path], kind: ForeignKind, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_kinds, "ENOUGH_AGREED", 8)
    directory = directories["family:rounds"]
    with foreign_trainer(directory, ForeignKind.KEEPS_IDS, plain(drifts=False), strict=strict) as trainer:
        steps = [{"sample": {}}, *[{"say": [{"role": "user", "content": "And now?"}]}, {"sample": {}}] * 4]
        spec = {
            "server_url": trainer.url,
            "tokenizer_name": str(directory),
            "messages": [{"role": "user", "content": "15 + 23?"}],
            "agent": REPLAY,
            "metadata": {"steps": steps},
        }
        for _ in range(3):
            (result,) = await inside.run(spec)
            proved(result, trainer)
        # Nobody has learned a kind: nothing ever differed. And its turns are no longer counted.
        agreement = next(iter(inside.services.kinds._agreements.values()))
        assert agreement._left >= 4, vars(agreement)
        trainer.become(kind, plain(drifts=True))
        results = [(await inside.run(spec))[0] for _ in range(4)]
        lost = [one for one in results if one.status is not RolloutStatus.COMPLETED]
        if strict:
            # It refuses the first mask that is not its own, and all lengths are counted.
            assert not lost
            assert trainer.refused == 1
        else:
            assert [one.failure and one.failure.category for one in lost] == ["mask_disproved"]
            assert lost == results[:1]
        for one in results[len(lost) :]:
            proved(one, trainer)
        assert not agreement.spares_count()
