"""The golden cases: expected ids, masks, labels and refusals on real tokenizers, written by hand per template."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.rendering import RerenderCounter
from rolloutpool_common.rendering.checks.conformance import case_faults, conversation_faults, tokenizer_name

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("masks.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = GOLDEN["cases"]
CASE_IDS = [f"{case['name']}-{tokenizer_name(case)}" for case in CASES]

pytestmark = pytest.mark.real_tokenizer


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_case(case: dict[str, Any]) -> None:
    assert case_faults(case, real_tokenizer(tokenizer_name(case))) == []


@pytest.mark.parametrize("case", GOLDEN["multi_turn"], ids=tokenizer_name)
def test_conversation_of_many_turns(case: dict[str, Any]) -> None:
    assert conversation_faults(case, real_tokenizer(tokenizer_name(case))) == []


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_first_prompt_is_rendered_as_the_server_does(case: dict[str, Any]) -> None:
    tokenizer = real_tokenizer(tokenizer_name(case))
    rendered = tokenizer.render_prompt(
        case["initial_messages"], tools=case["tools"], template_kwargs=case["template_kwargs"]
    )
    assert rendered == case["prompt_ids"]


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_what_a_re_rendering_trainer_counts_is_predicted(case: dict[str, Any]) -> None:
    if "server_rerender_ids" not in case or case["name"] == "06b-tools-changed":  # it cannot, or not with our tools
        return
    tokenizer = real_tokenizer(tokenizer_name(case))
    counter = RerenderCounter(tokenizer, tools=case["tools"], template_kwargs=case["template_kwargs"])
    before = counter.count(case["initial_messages"]) + len(case["sampled_ids"][0])
    assert counter.count(case["replayed_messages"]) == len(case["server_rerender_ids"])
    assert len(case["server_rerender_ids"]) - before == case["seed_num_new_tokens"]


@pytest.mark.parametrize("wrong", ["ids", "mask", "label", "samples", "refusal"])
def test_the_runner_notices_what_is_wrong(wrong: str) -> None:
    case = dict(next(c for c in CASES if c["expected_samples_if_server_rerenders"] == 2))
    if wrong == "ids":
        case["expected_token_ids"] = [*case["expected_token_ids"][:-1], 0]
    elif wrong == "mask":
        case["expected_mask"] = [1, *case["expected_mask"][1:]]
    elif wrong == "label":
        case["expected_drift"] = "none"
    elif wrong == "samples":
        case["expected_samples_if_server_rerenders"] = 1
    else:
        case["expected"] = "refuse"
    assert case_faults(case, real_tokenizer(tokenizer_name(case))) != []
