"""The package `renderers` beside our own parsers, on real tokenizers: `make test-parsers`."""

import json
from typing import Any

import pytest
from tests.golden.catalogue import FAMILIES, TOOL
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.rendering import ChatTokenizer, TurnParser
from rolloutpool_common.rendering.parsing import renderers_package, turn_parser
from rolloutpool_common.rendering.parsing.found import CallStatus, ParsedTurn
from rolloutpool_common.rendering.parsing.turn_parser import ParserMissing

base: Any = pytest.importorskip("renderers.base")

pytestmark = pytest.mark.real_tokenizer

NAMED = {
    "qwen3": "qwen3",
    "llama3_2": "llama-3",
    "deepseek_v3": "deepseek-v3",
}
"""Golden families, each with the parser that the package has for it."""


def parse(tokenizer: ChatTokenizer, text: str, template: str | None, *, whole: bool = True) -> ParsedTurn:
    ids = [*tokenizer.reference.encode(text, add_special_tokens=False)]
    ids += [tokenizer.close_id] if whole and tokenizer.close_id is not None else []
    return TurnParser.of(tokenizer, [TOOL], template).parse(ids, after=[], whole=whole)


def shown(parsed: ParsedTurn) -> tuple[Any, ...]:
    calls = parsed.message["tool_calls"] or []
    return (
        (parsed.message["content"] or "").strip(),
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls],
        [call.status for call in parsed.calls],
    )


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("arguments", ['{"a": 15, "b": 23}', '{"a":15,"b":23}', '{"b": 1e3, "a": "\\u00e9é"}'])
def test_both_find_the_calls_of_the_golden_families(name: str, arguments: str) -> None:
    tokenizer, text = real_tokenizer(name), FAMILIES[name].call.format(arguments)
    ours, theirs = parse(tokenizer, text, None), parse(tokenizer, text, f"renderers/{NAMED[name]}")
    assert shown(ours) == shown(theirs) == ("", [("add", json.loads(arguments))], [CallStatus.OK])
    # The package leaves the tags out of what it calls raw.
    (begin, end), (inner, behind) = ours.calls[0].span, theirs.calls[0].span
    assert begin <= inner < behind <= end


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("text", ["It is 38.", "", "Ä, 漢 {"])
def test_both_leave_answers_alone(name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    assert shown(parse(tokenizer, text, None)) == shown(parse(tokenizer, text, f"renderers/{NAMED[name]}"))


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>', CallStatus.INVALID),
        ('<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>', CallStatus.INVALID),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}', CallStatus.UNCLOSED),
    ],
)
def test_a_call_that_cannot_be_run_is_one_with_a_fault(text: str, status: CallStatus) -> None:
    for template in (None, "renderers/qwen3"):
        parsed = parse(real_tokenizer("qwen3"), text, template)
        assert [call.status for call in parsed.calls] == [status]
        assert list(parsed.message["tool_call_faults"]) == [parsed.calls[0].id]


def test_a_call_that_was_cut_is_content() -> None:
    text = 'I add. <tool_call>\n{"name": "add", "arguments": {"a": 1}'
    for template in (None, "renderers/qwen3"):
        parsed = parse(real_tokenizer("qwen3"), text, template, whole=False)
        assert parsed.message["tool_calls"] is None
        assert parsed.message["content"].replace(" ", "") == text.replace(" ", "")


def test_a_name_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = real_tokenizer("qwen3")
    monkeypatch.setattr(turn_parser, "known_syntax", lambda _: None)
    for family, found in (("qwen3", True), ("kimi-k2", False), ("glm-4.5", False), ("nothing", False)):
        monkeypatch.setattr(turn_parser, "_renderers", {})
        monkeypatch.setitem(base.MODEL_RENDERER_MAP, tokenizer.name, family)
        if found:
            parsed = parse(tokenizer, FAMILIES["qwen3"].call.format('{"a": 1}'), None)
            assert shown(parsed)[1] == [("add", {"a": 1})]
        else:
            with pytest.raises(ParserMissing):
                TurnParser.of(tokenizer, [TOOL])


@pytest.mark.parametrize("name", ["auto", "", "nothing", "../qwen3", "kimi-k2"])
def test_names_that_cannot_be_used_are_refused(name: str) -> None:
    with pytest.raises(ParserMissing, match="renderers/"):
        TurnParser.of(real_tokenizer("qwen3"), [TOOL], f"renderers/{name}")


def test_it_is_imported_once() -> None:
    assert renderers_package.is_installed()
    assert renderers_package.is_loaded()
    assert not turn_parser.needs_renderers(real_tokenizer("qwen3"), "renderers/qwen3")
