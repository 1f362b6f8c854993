"""`check-tokenizer` as a user meets it: what was found, exit codes, JSON, and both texts side by side."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.cells import cell_len
from tests.property.families import FAMILIES
from tests.support.tiny_tokenizers import write_tokenizer
from tests.tokenizers.real import real_directory
from typer.testing import CliRunner, Result

from rolloutpool_common.rendering import TINY, ChatTokenizer, Delta
from rolloutpool_trainer.cli import app
from rolloutpool_trainer.cli.tokenizer_report import json_schema

SCHEMA = Path(__file__).parents[4] / "docs" / "schemas" / "check-tokenizer.json"
NO_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('\x1b[2Jno [bold]tools') }}{% endif %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('too late') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check-tokenizer", *map(str, arguments)])


def document(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.stdout.isascii()
    found: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    assert found["exit_code"] == result.exit_code
    return found


@pytest.fixture
def refusing(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, NO_TOOLS)
    return tmp_path


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A renderer that forgets the last id of each generation prompt."""
    real = ChatTokenizer.render_delta

    def render(self: ChatTokenizer, *arguments: Any, **options: Any) -> Delta:
        delta = real(self, *arguments, **options)
        return Delta(delta.close_ids, delta.glue_ids[:-1])

    monkeypatch.setattr(ChatTokenizer, "render_delta", render)
    write_tokenizer(tmp_path, FAMILIES["rounds"].template)
    return tmp_path


def test_each_construct_is_named_with_what_was_found(refusing: Path) -> None:
    result = run(TINY)
    assert result.exit_code == 0
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    for name in ("first prompt", "tool rounds", "parallel calls", "other stop ids", "thinking", "typed control tokens"):
        assert lines[name].strip() == "exact"
    assert "the template has none" in lines["switch words of the template"]
    assert lines["content in parts"].strip() == "exact"
    refused = run(refusing)
    refusals = dict(line.split("  ", 1) for line in refused.stdout.splitlines())
    assert "no [bold]tools" in refusals["tool rounds"]
    assert "too late (rarely met)" in refusals["late system message"]
    assert "\x1b" not in refused.stdout


def test_a_refusal_that_is_not_met_does_not_fail(refusing: Path) -> None:
    assert run(refusing).exit_code == 1
    assert run(refusing, "--no-tools").exit_code == 0
    found = document(refusing)
    assert "tool result" in found["refused"]
    accepted = [option for name in found["refused"] for option in ("--accept", name)]
    assert run(refusing, *accepted).exit_code == 0
    assert run(refusing, *accepted[2:]).exit_code == 1
    assert "(accepted)" in run(refusing, *accepted).stdout


def test_a_construct_that_is_not_known_cannot_be_accepted() -> None:
    result = run(TINY, "--accept", "parallel cals")
    assert result.exit_code == 2
    assert "parallel calls" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("options", [(), ("--no-tools",), ("--accept", "user message")])
def test_what_is_wrong_fails_whatever_is_accepted(broken: Path, options: tuple[str, ...]) -> None:
    result = run(broken, *options)
    assert result.exit_code == 3
    assert "user message" in dict(line.split("  ", 1) for line in result.stdout.splitlines())["wrong"]
    found = document(broken, *options)
    assert found["report"]["verdict"] == "WRONG"
    assert "user message" in found["wrong"]


def test_explain_shows_both_texts_and_the_ids_at_the_first_difference(broken: Path) -> None:
    result = run(broken, "--explain")
    explained = result.stdout[result.stdout.index("user message: WRONG") :].split("\n\n")[0]
    assert "case: user > [answer, stop sampled] > user" in explained
    assert "the policy sampled: … 'quail<|im_end|>'" in explained
    assert '{"role": "user", "content": "heron"}' in explained
    rows = [line for line in explained.splitlines() if "|" in line and " | " in line]
    differing = [line for line in rows if line.startswith("  ≠")]
    assert differing[0].split() == ["≠", "<|im_start|>assistant", "|", "<|im_start|>assistant↵"]
    assert "(end)" in differing[-1]
    assert "'↵'" in differing[-1]
    assert all(cell_len(line) <= 100 for line in rows)
    assert "\x1b" not in result.stdout


def test_explain_says_where_there_is_nothing_to_explain(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, FAMILIES["wrapped_with_tools"].template.replace("m.content", "(m.content | string)"))
    assert "nothing to explain" in run(tmp_path, "--explain").stdout


def test_the_published_schema_is_the_one_of_the_code() -> None:
    assert json.loads(SCHEMA.read_text()) == json_schema()


def test_a_tokenizer_that_cannot_be_loaded_is_a_document_too(tmp_path: Path) -> None:
    found = document(tmp_path / "nowhere")
    assert found["exit_code"] == 1
    assert found["report"]["verdict"] == "refuse"
    assert "no such directory" in found["report"]["reason"]


@pytest.mark.real_tokenizer
@pytest.mark.parametrize(
    ("name", "code", "refused"),
    [("qwen3", 0, []), ("llama3_2", 1, ["parallel calls"])],
)
def test_real_tokenizers(name: str, code: int, refused: list[str]) -> None:
    found = document(real_directory(name))
    assert (found["exit_code"], found["refused"], found["wrong"]) == (code, refused, [])
