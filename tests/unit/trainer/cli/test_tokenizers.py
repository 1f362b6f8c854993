"""`check-tokenizer` and `conformance` as a user meets them."""

import json
import shutil
from pathlib import Path

import pytest
from tests.support.printed_documents import read_document
from tests.support.tiny_tokenizers import write_tokenizer
from typer.testing import CliRunner, Result

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer.cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_tokenizer_that_cannot_be_loaded_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, None)
    result = run("check-tokenizer", tmp_path)
    assert result.exit_code == 1
    assert "refuse" in result.stdout
    assert "no chat template" in result.stdout


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    tiny = load_tokenizer(TINY)
    said = tiny.encode("Sure.<|im_end|>")
    prompt = tiny.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    refused = {
        "name": "late moderator",
        "tokenizer": "@lenml/tokenizer-small@3.7.2",
        "prompt_ids": prompt,
        "sampled_ids": [said, said],
        "appended_messages": [{"role": "moderator", "content": "x"}],
        "expected": "refuse",
    }
    answered = {**refused, "name": "user", "appended_messages": [{"role": "user", "content": "x"}]}
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"format": 1, "cases": [refused, answered]}))
    shutil.copytree(TINY_TOKENIZER, tmp_path / "small")
    return file


def test_failing_cases_are_listed_and_counted(cases: Path) -> None:
    result = run("conformance", cases, "--tokenizers", cases.parent)
    assert result.stdout.splitlines() == [
        "FAILED user on small: token-in: ids where a refusal is expected",
        "1 passed, 1 failed",
    ]
    assert result.exit_code == 1


@pytest.mark.parametrize("passing", [True, False])
def test_outcomes_as_json(cases: Path, passing: bool) -> None:
    document = json.loads(cases.read_text())
    cases.write_text(json.dumps({"cases": document["cases"][: 1 if passing else 2]}))
    result = run("conformance", cases, "--tokenizers", cases.parent, "--json")
    printed = read_document("conformance", result.stdout)
    assert (result.exit_code, printed["passed"], printed["failed"]) == (int(not passing), 1, int(not passing))
    faults = {case["name"]: case["faults"] for case in printed["cases"]}
    assert faults.pop("late moderator on small") == []
    assert list(faults.values()) == ([] if passing else [["token-in: ids where a refusal is expected"]])


def test_all_passed_is_success(cases: Path) -> None:
    document = json.loads(cases.read_text())
    cases.write_text(json.dumps({"cases": document["cases"][:1]}))
    result = run("conformance", cases, "--tokenizers", cases.parent)
    assert (result.exit_code, result.stdout) == (0, "1 passed, 0 failed\n")


def test_a_missing_tokenizer_fails_its_cases(cases: Path, tmp_path: Path) -> None:
    result = run("conformance", cases, "--tokenizers", tmp_path / "nowhere")
    assert "0 passed, 2 failed" in result.stdout
    assert result.stdout.count("no such directory") == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"cases": []}'])
def test_what_is_no_case_file_is_an_error(cases: Path, content: str) -> None:
    cases.write_text(content)
    result = run("conformance", cases, "--tokenizers", cases.parent)
    assert result.exit_code == 2
    assert "CASES.json" in result.stderr
