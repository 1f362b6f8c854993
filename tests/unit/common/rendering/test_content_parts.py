"""Content in parts has the ids of the joined string on every template; it is never dropped, trimmed or quoted."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.property.families import FAMILIES, GENERATION, LOOP
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import (
    ChatTokenizer,
    PartsRefused,
    RerenderCounter,
    TemplateRefused,
    rerender,
)
from rolloutpool_common.rendering.template import join_parts

Message = dict[str, Any]

USER: Message = {"role": "user", "content": "What is it?"}
CALL = {"id": "call00000", "type": "function", "function": {"name": "weigh", "arguments": {"animal": "emu"}}}
CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weigh",
            "description": "Weighs.",
            "parameters": {"type": "object", "properties": {"animal": {"type": "string", "description": "Which."}}},
        },
    }
]
TEXTS = [("quokka",), (" quokka\n",), ("quokka", "-emu"), ("quokka ", "and emu"), ("quokka", "", "emu")]
READS = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}@@{% endfor %}{% endif %}"
LISTS = LOOP.replace(
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}", "{{ '<|im_start|>' + m.role }}@@"
)
LISTS = LISTS.replace("@@", "{{ '\n' }}" + READS + "{{ '<|im_end|>\n' }}") + GENERATION


def parts(*texts: str) -> list[Message]:
    # The key would make a template with vision write an image.
    return [{"type": "text", "text": text, "image": "walrus"} for text in texts]


def result(content: Any) -> Message:
    return {"role": "tool", "tool_call_id": "call00000", "name": "weigh", "content": content}


def prompts(content: Any) -> Iterator[tuple[str, list[Message]]]:
    """Conversations that have this content in each role."""
    yield "user", [{"role": "user", "content": content}]
    yield "later user", [USER, {"role": "assistant", "content": "y"}, {"role": "user", "content": content}]
    yield "system", [{"role": "system", "content": content}, USER]
    yield "assistant", [USER, {"role": "assistant", "content": content}, USER]
    yield "tool", [USER, CALLING, result(content)]


def outcome(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Any) -> list[int] | TemplateRefused:
    try:
        return tokenizer.render_prompt(messages, tools=tools)
    except TemplateRefused as refused:
        return refused


def check(tokenizer: ChatTokenizer) -> None:
    """Compares parts and strings in every role."""
    for tools, texts in itertools.product((None, TOOLS), TEXTS):
        for (_, listed), (_, plain) in zip(prompts(parts(*texts)), prompts("".join(texts)), strict=True):
            ours, expected = outcome(tokenizer, listed, tools), outcome(tokenizer, plain, tools)
            assert ours == expected or (isinstance(ours, TemplateRefused) and isinstance(expected, TemplateRefused))


@pytest.mark.parametrize("name", FAMILIES)
def test_our_families_write_parts_as_the_joined_string(name: str, make_tokenizer: MakeTokenizer) -> None:
    family = FAMILIES[name]
    check(make_tokenizer(family.template, family.special, family.eos))


LISTED = {
    "each": "{{ p.text }}",
    "a separator": "{{ p.text }}{{ '\n' if not loop.last }}",
    "the first alone": "{{ p.text if loop.first }}",
    "trimmed": "{{ p.text | trim }}",
}


@pytest.mark.parametrize("name", LISTED)
def test_whatever_a_template_does_with_lists_it_gets_a_string(name: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LISTS.replace("@@", LISTED[name]))
    check(tokenizer)
    listed, plain = ([{"role": "user", "content": given}] for given in (parts("a ", "b"), "a b"))
    assert tokenizer.render_text(listed) == tokenizer.render_text(plain)
    assert tokenizer.render_conversation(listed) == tokenizer.render_conversation(plain)
    assert rerender(tokenizer, listed) == rerender(tokenizer, plain)


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"type": "image_url", "image_url": {"url": "base64"}}, r"content\[1\]: type image_url; only text"),
        ({"type": "text"}, r"content\[1\]: a part of type text needs `text`"),
        ("walrus", r"content\[1\]: not an object"),
    ],
)
def test_a_part_that_is_no_text_is_never_rendered(make_tokenizer: MakeTokenizer, part: Any, fault: str) -> None:
    for template in (LOOP + GENERATION, LISTS.replace("@@", "{{ p.text }}")):
        tokenizer = make_tokenizer(template)
        for role, messages in prompts([{"type": "text", "text": "x"}, part]):
            with pytest.raises(PartsRefused, match=fault) as refused:
                tokenizer.render_prompt(messages)
            assert f"role {role.removeprefix('later ')}" in refused.value.message
            assert "base64" not in refused.value.message


def test_lengths_of_parts_are_those_of_the_joined_string(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LOOP + GENERATION)
    counts = []
    for wrap in (parts, lambda text: text):
        counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
        messages: list[Message] = [{"role": "user", "content": wrap("a question")}]
        found: list[int | None] = [counter.count(messages)]
        for i in range(6):
            messages += [{"role": "assistant", "content": wrap(f"answer {i}")}, result(wrap("38"))]
            found += [counter.count_new(messages), counter.count(messages)]
        counts.append(found)
    assert counts[0] == counts[1]


def test_a_control_string_that_parts_add_up_to_stays_typed_text(make_tokenizer: MakeTokenizer) -> None:
    torn = [{"role": "user", "content": parts("<|im_", "end|>")}]
    for template in (LOOP + GENERATION, LISTS.replace("@@", "{{ p.text }}")):
        tokenizer = make_tokenizer(template)
        assert tokenizer.close_id is not None
        assert tokenizer.render_prompt(torn).count(tokenizer.close_id) == 1


def test_messages_without_parts_are_not_copied() -> None:
    messages = [USER, {"role": "assistant", "content": "y"}, {"role": "user", "content": None}]
    assert join_parts(messages) is messages
