"""The internals of transformers that `transformers_compat` uses still work; a failure here names what changed."""

from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rolloutpool_common.rendering.render_clock import one_time
from rolloutpool_common.rendering.transformers_compat import (
    backend_of,
    parse_template,
    prepare_sandbox,
    repository_file,
    template_environment,
    template_keys,
)
from rolloutpool_common.testing import TINY_TOKENIZER


def test_a_directorys_tokenizer_json_is_found(tmp_path: Path) -> None:
    assert repository_file(str(TINY_TOKENIZER), "tokenizer.json", None) == TINY_TOKENIZER / "tokenizer.json"


def test_a_directory_without_one_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert repository_file(str(tmp_path), "tokenizer.json", None) is None


def test_a_fast_tokenizer_has_a_backend() -> None:
    assert isinstance(backend_of(PreTrainedTokenizerFast.from_pretrained(TINY_TOKENIZER)), Tokenizer)


def test_a_template_that_cannot_be_compiled_has_no_environment() -> None:
    assert template_environment("{% if %}") is None


def test_a_templates_environment_has_the_filters_of_transformers() -> None:
    environment = template_environment("{{ messages }}")
    assert environment is not None
    assert environment.call_filter("tojson", "<é>") == '"<é>"'


def test_the_tree_that_proofs_read_is_the_templates_own() -> None:
    """The checks of the budget, and what the compiler folds, are in a copy."""
    source = "{% for m in messages if 'a' ~ 'b' in m.content %}{{ m.content | trim | default('x' ~ 'y') }}{% endfor %}"
    environment = template_environment(source)
    assert environment is not None
    assert parse_template(source) == environment.parse(source)


def test_thoughts_have_all_names_in_templates() -> None:
    source = "{% for key in messages[0] %}{{ key }},{% endfor %}"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY_TOKENIZER)
    for keys in ({"role", "content"}, {"role", "reasoning"}, {"role", "reasoning_content"}):
        shown = tokenizer.apply_chat_template([dict.fromkeys(keys, "x")], chat_template=source, tokenize=False)
        assert set(str(shown).split(",")[:-1]) == set(template_keys(keys))
    assert set(template_keys(["reasoning"])) >= {"reasoning_content", "thinking"}


EXPRESSIONS = {
    "message.role": "user",
    "message.missing is defined": "False",
    "message.missing": "",
    "message.keys is callable": "True",
    "message.items() | list": "[('role', 'user'), ('items', 'a key')]",
    "message['items']": "a key",
    "message.get('role')": "user",
    "message.role.upper()": "USER",
    "' x '.strip() + 'a-b'.split('-')[1]": "xb",
    "'{}'.format(1)": "1",
    "'%s' | format(1)": "1",
    "message.role.nothing is defined": "False",
    "namespace(found=true).found": "True",
    "[1, 2].index(2)": "1",
    # What the sandbox forbids.
    "message.__class__": "forbidden",
    "message.update({})": "forbidden",
    "'x'.__class__.__mro__": "forbidden",
    "'{0.__class__}'.format(1)": "forbidden",
    "'{a.__class__}'.format_map({'a': 1})": "forbidden",
    "[].append(1)": "forbidden",
    "loop.__init__": "forbidden",
    "message.role.__len__()": "forbidden",
}


def _evaluate(tokenizer: PreTrainedTokenizerFast, source: str) -> str:
    message: dict[str, Any] = {"role": "user", "items": "a key"}
    try:
        return str(tokenizer.apply_chat_template([message], chat_template=source, tokenize=False))
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_quick_sandbox_gives_what_the_careful_one_gives(expression: str) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY_TOKENIZER)
    source = "{% for message in messages %}{{ " + expression + " }}{{ loop.first }}{{ loop.index }}{% endfor %}"
    careful = _evaluate(tokenizer, source)
    # Another text, because the compiled template is remembered by its text.
    quick_source = source + "{# quick #}"
    prepare_sandbox(quick_source)
    assert _evaluate(tokenizer, quick_source) == careful
    expected = EXPRESSIONS[expression]
    if expected == "forbidden":
        assert careful in ("SecurityError", "True1", "UndefinedError")
    else:
        assert careful == f"{expected}True1"


def test_the_sandbox_of_apply_chat_template_is_the_one_that_is_quickened(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY_TOKENIZER)
    source = "{{ messages[0].role }}{# counted #}"
    asked: list[str] = []
    careful = Environment.getattr

    def counted(self: Environment, obj: Any, attribute: str) -> Any:
        asked.append(attribute)
        return careful(self, obj, attribute)

    monkeypatch.setattr("jinja2.sandbox.SandboxedEnvironment.getattr", counted)
    prepare_sandbox(source)
    assert _evaluate(tokenizer, source) == "user"
    assert asked == []


def test_a_template_with_a_fault_is_left_to_its_render() -> None:
    prepare_sandbox("{% for %}")


def test_the_time_of_templates_can_be_held_still() -> None:
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(TINY_TOKENIZER)
    source = "{{ strftime_now('%H:%M:%S.%f') }}{# held #}"

    def rendered() -> str:
        prepare_sandbox(source)
        return str(
            tokenizer.apply_chat_template([{"role": "user", "content": "x"}], chat_template=source, tokenize=False)
        )

    assert rendered() != rendered()
    with one_time():
        assert rendered() == rendered()
