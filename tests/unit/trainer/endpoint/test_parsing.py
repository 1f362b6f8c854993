"""Calls are found between tags, and nothing that was sampled disappears."""

import json
import re

import pytest
from tests.tokenizers.real import TEMPLATE_NAMES, real_tokenizer

from rolloutpool_common.rendering import TemplateRefused
from rolloutpool_trainer.endpoint.parsing import SampledParser, parse_tool_calls


def block(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def test_calls_and_content_around_them() -> None:
    text = (
        "First both.\n"
        + block('{"name": "add", "arguments": {"a": 1, "b": "é"}}')
        + "\n"
        + block('{"arguments":{},"name":"x"}')
    )
    message = parse_tool_calls(text)
    assert message.content == "First both."
    assert message.tool_calls is not None
    assert [call.function.name for call in message.tool_calls] == ["add", "x"]
    assert message.tool_calls[0].function.arguments == '{"a": 1, "b": "é"}'
    assert message.tool_calls[0].id != message.tool_calls[1].id


@pytest.mark.parametrize(
    "inside",
    [
        '{"name": "add", "arguments": {"a": 1}',
        "[1]",
        '{"arguments": {}}',
        '{"name": ""}',
        '{"name": 3}',
        '{"name": "' + "x" * 257 + '"}',
        '{"name": "add", "arguments": {"a": "\\ud800"}}',
        "[" * 100_000,
    ],
)
def test_a_block_that_is_no_call_stays_content(inside: str) -> None:
    text = "So: " + block(inside)
    message = parse_tool_calls(text)
    assert message.tool_calls is None
    assert message.content == text


def test_a_broken_block_beside_a_good_one_stays_content() -> None:
    message = parse_tool_calls(block("{bad") + block('{"name": "add"}'))
    assert message.content == block("{bad")
    assert message.tool_calls is not None
    assert len(message.tool_calls) == 1


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", ["mistral_nemo", "qwen3", *TEMPLATE_NAMES])
def test_every_template_that_renders_tools_takes_the_ids_of_calls(name: str) -> None:
    """Mistral's template raises unless an id has exactly nine letters or digits."""
    tokenizer = real_tokenizer(name)
    message = parse_tool_calls(block('{"name": "add", "arguments": {"a": 15, "b": 23}}'))
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert re.fullmatch("[a-zA-Z0-9]{9}", call.id)

    def rendered(call_id: str) -> list[int]:
        called = {**message.wire(), "tool_calls": [{**call.model_dump(), "id": call_id}]}
        result = {"role": "tool", "name": "add", "tool_call_id": call_id, "content": "38"}
        return tokenizer.render_prompt([{"role": "user", "content": "15 + 23?"}, called, result])

    try:
        rendered("abcdefghi")
    except TemplateRefused:
        pytest.skip("this template renders no tool calls")
    assert rendered(call.id)


TOOL = {
    "type": "function",
    "function": {"name": "guess", "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}}},
}


@pytest.mark.real_tokenizer
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_2", '{"name": "guess", "parameters": {"number": 5}}'),
        ("mistral_nemo", '[TOOL_CALLS][{"name": "guess", "arguments": {"number": 5}}]'),
        ("qwen3", block('{"name": "guess", "arguments": {"number": 5}}')),
        # Some policies write this form whatever their template says.
        ("llama3_2", block('{"name": "guess", "arguments": {"number": 5}}')),
    ],
)
def test_a_call_as_the_template_writes_it_is_a_call(name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    message = SampledParser(tokenizer, None).message(tokenizer.encode(text), [TOOL])
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.function.name == "guess"
    assert isinstance(call.function.arguments, str)
    assert json.loads(call.function.arguments) == {"number": 5}
    assert message.content is None


@pytest.mark.real_tokenizer
def test_a_template_without_calls_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = real_tokenizer("gemma3")
    parser = SampledParser(tokenizer, None)
    assert "give `parse`" in caplog.text
    assert parser.message(tokenizer.encode("Hello"), [TOOL]).content == "Hello"
