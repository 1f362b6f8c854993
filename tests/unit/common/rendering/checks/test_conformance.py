"""The case runner on the tiny tokenizer: what passes, what fails, and what must not stop it."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.checks.conformance import run
from rolloutpool_common.testing import TINY_TOKENIZER

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
DELTA = "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
SAID = "Sure.<|im_end|>"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(TINY_TOKENIZER, tmp_path / "small")
    return tmp_path


@pytest.fixture
def case(tiny: ChatTokenizer) -> dict[str, Any]:
    prompt, delta, said = map(tiny.encode, (PROMPT, DELTA, SAID))
    return {
        "name": "control",
        "tokenizer": "@lenml/tokenizer-small@3.7.2",
        "prompt_ids": prompt,
        "sampled_ids": [said, said],
        "appended_messages": [{"role": "user", "content": "go on"}],
        "expected_delta_ids": delta,
        "expected_token_ids": [*prompt, *said, *delta, *said],
        "expected_mask": [*[0] * len(prompt), *[1] * len(said), *[0] * len(delta), *[1] * len(said)],
    }


@pytest.fixture
def conversation(case: dict[str, Any]) -> dict[str, Any]:
    said, append = case["sampled_ids"][0], case["appended_messages"]
    return {
        **{key: case[key] for key in ("tokenizer", "prompt_ids", "expected_token_ids", "expected_mask")},
        "turns": [{"sampled": said, "append": append, "delta_ids": case["expected_delta_ids"]}, {"sampled": said}],
    }


def faults(document: dict[str, Any], directory: Path) -> list[tuple[str, ...]]:
    return [outcome.faults for outcome in run(document, directory)]


def test_right_cases_pass(case: dict[str, Any], conversation: dict[str, Any], directory: Path) -> None:
    document = {"cases": [case], "multi_turn": [conversation]}
    assert [(o.name, o.faults) for o in run(document, directory)] == [
        ("control on small", ()),
        ("multi_turn 1 on small", ()),
    ]


@pytest.mark.parametrize("key", ["expected_delta_ids", "expected_token_ids", "expected_mask", "prompt_ids"])
def test_every_expectation_is_compared(case: dict[str, Any], directory: Path, key: str) -> None:
    wrong = copy.deepcopy(case)
    wrong[key][0] = 1 - wrong[key][0] if key == "expected_mask" else wrong[key][0] + 1
    assert faults({"cases": [wrong]}, directory) != [()]


@pytest.mark.parametrize("key", ["expected_token_ids", "expected_mask", "prompt_ids", "turns"])
def test_every_expectation_of_a_conversation_is_compared(
    conversation: dict[str, Any], directory: Path, key: str
) -> None:
    wrong = copy.deepcopy(conversation)
    if key == "turns":
        wrong["turns"][0]["delta_ids"][0] += 1
    else:
        wrong[key][0] = 1 - wrong[key][0] if key == "expected_mask" else wrong[key][0] + 1
    assert faults({"multi_turn": [wrong]}, directory) != [()]


def test_a_refusal_is_expected_or_a_fault(case: dict[str, Any], directory: Path) -> None:
    refused = [{"role": "moderator", "content": "x"}]
    assert faults({"cases": [{**case, "appended_messages": refused, "expected": "refuse"}]}, directory) == [()]
    (unexpected,) = faults({"cases": [{**case, "appended_messages": refused}]}, directory)
    assert "refused where ids are expected" in unexpected[0]
    (missing,) = faults({"cases": [{**case, "expected": "refuse"}]}, directory)
    assert "ids where a refusal is expected" in missing[0]


def test_a_trainer_that_renders_again_is_played(case: dict[str, Any], directory: Path) -> None:
    echo = case["expected_token_ids"][: -len(case["sampled_ids"][1])]
    same = {**case, "server_rerender_ids": echo, "expected_drift": "none", "expected_samples_if_server_rerenders": 1}
    assert faults({"cases": [same]}, directory) == [()]
    (other,) = faults({"cases": [{**same, "server_rerender_ids": [echo[0] + 1, *echo[1:]]}]}, directory)
    assert any("label" in fault for fault in other)
    assert any("2 samples" in fault for fault in other)


def test_a_missing_tokenizer_and_a_broken_case_fail_alone(case: dict[str, Any], directory: Path) -> None:
    elsewhere = {**case, "tokenizer": "@lenml/tokenizer-unknown@3.7.2"}
    broken = {key: value for key, value in case.items() if key != "sampled_ids"}
    first, second, third = faults({"cases": [elsewhere, broken, case]}, directory)
    assert "no such directory" in first[0]
    assert "sampled_ids" in second[0]
    assert third == ()
