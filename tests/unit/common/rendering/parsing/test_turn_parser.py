"""From sampled ids to a message: which parser a tokenizer gets, and what becomes of calls that cannot be run."""

import json
from typing import Any

import pytest
from tests.golden.catalogue import FAMILIES, TOOL
from tests.support.tiny_tokenizers import MakeTokenizer
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.protocol.messages import CALL_FAULTS
from rolloutpool_common.rendering import ChatTokenizer, TurnParser
from rolloutpool_common.rendering.parsing.found import CallStatus, ParsedTurn
from rolloutpool_common.rendering.parsing.turn_parser import ParserMissing, known_syntax, split_thoughts
from rolloutpool_trainer.endpoint.parsing import parse_tool_calls

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 23}}\n</tool_call>'


def parse(
    tokenizer: ChatTokenizer, text: str, *, whole: bool = True, before: str = "", template: Any = None
) -> ParsedTurn:
    ids = [*tokenizer.encode(text), *([tokenizer.close_id] if whole and tokenizer.close_id is not None else [])]
    return TurnParser.of(tokenizer, [TOOL], template).parse(ids, after=tokenizer.encode(before), whole=whole)


def calls_of(parsed: ParsedTurn) -> list[tuple[str, Any]]:
    calls = parsed.message["tool_calls"] or []
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_thoughts_are_no_content_and_hold_no_calls(tiny: ChatTokenizer) -> None:
    parsed = parse(tiny, f"<think>\nperhaps {CALL}\n</think>\n\n{CALL}")
    assert parsed.message["reasoning_content"] == f"perhaps {CALL}"
    assert parsed.message["content"] is None
    assert len(parsed.calls) == 1
    opened = parse(tiny, "so\n</think>\n\nIt is 38.", before="<|im_start|>assistant\n<think>\n")
    assert (opened.message["reasoning_content"], opened.message["content"]) == ("so", "It is 38.")


@pytest.mark.parametrize(
    ("text", "name", "status"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": </tool_call>', "add", CallStatus.INVALID),
        ("<tool_call>add(15, 23)</tool_call>", "invalid_tool_call", CallStatus.INVALID),
        ('<tool_call>{"name": "add", "arguments": {"a": 15}}', "add", CallStatus.UNCLOSED),
    ],
)
def test_a_call_that_cannot_be_run_is_a_call_with_a_fault(
    tiny: ChatTokenizer, text: str, name: str, status: CallStatus
) -> None:
    parsed = parse(tiny, text)
    (made,) = parsed.message["tool_calls"]
    assert made["function"]["name"] == name
    assert list(parsed.message[CALL_FAULTS]) == [made["id"]]
    assert parsed.calls[0].status is status


def test_without_tools_a_family_need_not_be_known(make_tokenizer: MakeTokenizer) -> None:
    plain = make_tokenizer("{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}")
    assert known_syntax(plain) is None
    with pytest.raises(ParserMissing, match="response_template"):
        TurnParser.of(plain, [TOOL])
    assert TurnParser.of(plain, []).parse(plain.encode(CALL), after=[], whole=True).message["content"] == CALL
    named = TurnParser.of(plain, [TOOL], "hermes").parse(plain.encode(CALL), after=[], whole=True)
    assert calls_of(named) == [("add", {"a": 15, "b": 23})]


@pytest.mark.parametrize("template", ["hermeticism", {}, {"fields": {}}])
def test_what_cannot_be_used_is_refused(tiny: ChatTokenizer, template: Any) -> None:
    with pytest.raises(ParserMissing, match="response_template"):
        TurnParser.of(tiny, [TOOL], template)


def test_a_template_of_the_batch_comes_first(tiny: ChatTokenizer) -> None:
    template = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open": "[[",
                "close": "]]",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {},
        },
    }
    text = 'I add. [[{"name": "add", "arguments": {"a": 1}}]]'
    parsed = parse(tiny, text, template=template, before="<|im_start|>assistant\n")
    assert (calls_of(parsed), parsed.message["content"]) == ([("add", {"a": 1})], "I add.")
    for end in range(len("I add. [["), len(text)):
        cut = parse(tiny, text[:end], template=template, whole=False)
        assert (cut.message["tool_calls"], cut.message["content"]) == (None, text[:end])


SYNTAX = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "llama3_2": "llama_json",
    "mistral_nemo": "mistral",
    "deepseek_v3": "deepseek",
    "template:qwen3_instruct_2507": "hermes",
    "template:qwen3_vl": "hermes",
    "template:qwen3_5_think": "qwen_xml",
    "template:glm4moe": "glm",
    "template:llama3_1": "llama_json",
    "template:deepseekv3": "deepseek",
}


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", SYNTAX)
def test_the_template_shows_the_syntax(name: str) -> None:
    syntax = known_syntax(real_tokenizer(name))
    assert syntax is not None
    assert syntax.name == SYNTAX[name]


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", ["llama3", "gemma3", "command_r_plus", "template:gptoss", "template:phi3_5"])
def test_templates_that_write_no_call_that_is_known_are_refused(name: str) -> None:
    tokenizer = real_tokenizer(name)
    assert known_syntax(tokenizer) is None
    with pytest.raises(ParserMissing, match=r"response_template"):
        TurnParser.of(tokenizer, [TOOL])


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", [name for name in SYNTAX if name in FAMILIES])
@pytest.mark.parametrize("arguments", ['{"a": 15, "b": 23}', '{"a":15,"b":23}', '{"b": 1e3, "a": "\\u00e9é"}'])
def test_what_the_golden_families_sample_is_parsed(name: str, arguments: str) -> None:
    parsed = parse(real_tokenizer(name), FAMILIES[name].call.format(arguments))
    assert calls_of(parsed) == [("add", json.loads(arguments))]
    assert {call.status for call in parsed.calls} == {CallStatus.OK}
    assert parsed.message["content"] is None


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
@pytest.mark.parametrize(
    "text",
    [
        "It is 38.",
        " It is 38.\n",
        CALL,
        f"I add.\n{CALL}",
        f"{CALL}\n{CALL}",
        f"{CALL} and then",
        '<tool_call>{"name":"add","arguments":"{\\"a\\": 1}"}</tool_call>',
        '<tool_call>{"name":"ädd","arguments":{"x":"<|im_end|>"}}</tool_call>',
        '<tool_call>{"name":"add","arguments":{"a":[1,{"b":null}]}}</tool_call>',
        "",
    ],
)
def test_calls_are_those_that_the_callback_path_gets(name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    ids = tokenizer.encode(text, control=False)
    ours = TurnParser.of(tokenizer, [TOOL]).parse(ids, after=[], whole=True).message
    theirs = parse_tool_calls(tokenizer.decode(ids)).wire()
    for message in (ours, theirs):
        for call in message["tool_calls"] or ():
            assert len(call.pop("id")) == 9
    assert ours == theirs


@pytest.mark.parametrize(
    ("text", "before", "reasoning", "rest"),
    [
        ("It is 38.", "<|im_start|>assistant\n", None, "It is 38."),
        ("<think>\n15 + 23\n</think>\n\nIt is 38.", "", "15 + 23", "\n\nIt is 38."),
        ("\n<think></think>x", "", "", "x"),
        ("15 + 23\n</think>\n\nIt is 38.", "assistant\n<think>\n", "15 + 23", "\n\nIt is 38."),
        ("It is 38.", "<think>\n\n</think>\n\n", None, "It is 38."),
        ("<think>\nnever closed <tool_call>", "", "never closed <tool_call>", ""),
        ("never closed", "<think>", "never closed", ""),
        ("It is <think>38</think>.", "", None, "It is <think>38</think>."),
        ("<think>a</think>b</think>c", "", "a", "b</think>c"),
        ("", "<think>\n", "", ""),
        ("", "", None, ""),
    ],
)
def test_the_two_parts(text: str, before: str, reasoning: str | None, rest: str) -> None:
    found = split_thoughts(text, before)
    assert (found.reasoning, text[found.start :]) == (reasoning, rest)
