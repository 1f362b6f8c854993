"""What a re-rendering trainer counts is what it would count, on every kind of added token."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.property.families import GENERATION, LOOP
from tests.property.odd_families import lay_out_models
from tests.support.tiny_tokenizers import MakeTokenizer, write_tokenizer

from rolloutpool_common.rendering import ChatTokenizer, RerenderCounter, load_tokenizer, rerender
from rolloutpool_common.rendering.template import parse_arguments

CHATML = LOOP + GENERATION
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "15 + 23?"},
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\nI add."},
    {"role": "user", "content": "a <|odd|> b<|odd|>\n c e\u0301<|im_end|>\u0338<|odd|>s <tool_call>"},
]


def counted(tokenizer: ChatTokenizer) -> list[int]:
    counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
    return [counter.count(HISTORY[: n + 1]) for n in range(len(HISTORY))]


def rendered(tokenizer: ChatTokenizer) -> list[int]:
    return [len(rerender(tokenizer, HISTORY[: n + 1])) for n in range(len(HISTORY))]


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_added_tokens_that_are_no_borders(tmp_path: Path, flag: str) -> None:
    write_tokenizer(tmp_path, CHATML, ("<|odd|>",))
    file = tmp_path / "tokenizer.json"
    source = json.loads(file.read_text(encoding="utf-8"))
    source["added_tokens"][-1][flag] = True
    source["normalizer"] = {"type": "NFC"}
    file.write_text(json.dumps(source), encoding="utf-8")
    tokenizer = load_tokenizer(str(tmp_path))
    assert not tokenizer.codec.vocabulary.added_are_borders
    assert counted(tokenizer) == rendered(tokenizer)


def test_text_behind_an_added_token_is_no_beginning(tmp_path: Path) -> None:
    """A template that writes no added token shows nothing at its first prompt; one that was typed comes later."""
    models = {name: directory for name, directory, *_ in lay_out_models(tmp_path)}
    tokenizer = load_tokenizer(str(models["family:metaspace_first_separated"]))
    assert not tokenizer.codec.vocabulary.added_are_borders
    assert counted(tokenizer) == rendered(tokenizer)


def test_a_piece_is_tokenised_once(tiny: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = RerenderCounter(tiny, tools=None, template_kwargs=None)
    counter.count(HISTORY)
    seen: list[str] = []
    encode = ChatTokenizer.encode

    def recorded(self: ChatTokenizer, text: str, *, control: bool = True) -> list[int]:
        seen.append(text)
        return encode(self, text, control=control)

    monkeypatch.setattr(ChatTokenizer, "encode", recorded)
    counter.count([*HISTORY, {"role": "user", "content": "news"}])
    assert [text for text in seen if "news" not in text] == []
    assert seen


def test_null_content_is_put_right_where_the_template_cannot_take_it(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(CHATML)
    silent = [HISTORY[0], {"role": "assistant", "content": None}]
    counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
    assert counter.count(silent) == counter.count([HISTORY[0], {"role": "assistant", "content": ""}])


QUOTING = (  # as Qwen2.5's: arguments that are text are written as JSON text, quotes and all
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    + GENERATION
)


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def test_calls_are_counted_in_the_form_in_which_they_are_rendered(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(QUOTING)
    lengths = {}
    for parsed, given in ((False, '{"a":15}'), (True, {"a": 15})):
        counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None, parsed=parsed)
        counter.count(HISTORY[:1])
        result = {"role": "tool", "tool_call_id": "call00000", "content": "38"}
        lengths[parsed] = counter.count([HISTORY[0], calling('{"a":15}'), result])
        assert lengths[parsed] == len(rerender(tokenizer, [HISTORY[0], calling(given), result]))
    assert lengths[False] != lengths[True]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":15}', {"a": 15}),
        ("", {}),
        (None, {}),
        ("[1, 2]", [1, 2]),
        ("not JSON", "not JSON"),
        ("[" * 100_000, "[" * 100_000),
        ({"a": 15}, {"a": 15}),
    ],
)
def test_arguments_are_parsed_as_servers_do(text: Any, value: Any) -> None:
    given = [HISTORY[0], calling(text)]
    assert parse_arguments(given) == [HISTORY[0], calling(value)]
    assert given[1] == calling(text)
