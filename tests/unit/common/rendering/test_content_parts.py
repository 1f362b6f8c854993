"""Content in parts has the ids of the joined string on every template, or is refused; it is never dropped or quoted."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.property.families import FAMILIES, GENERATION, LOOP
from tests.support.tiny_tokenizers import MakeTokenizer
from tests.tokenizers.real import REAL_NAMES, TEMPLATE_NAMES, real_tokenizer

from rolloutpool_common.rendering import (
    ChatTokenizer,
    PartsRefused,
    RerenderCounter,
    TemplateRefused,
    rerender,
)
from rolloutpool_common.rendering.template import Template

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


def check(tokenizer: ChatTokenizer) -> dict[str, list[bool]]:
    """Compares parts and strings in every role; returns which forms of content were taken, by role."""
    taken: dict[str, list[bool]] = {}
    for tools, texts in itertools.product((None, TOOLS), TEXTS):
        for (role, listed), (_, plain) in zip(prompts(parts(*texts)), prompts("".join(texts)), strict=True):
            ours, expected = outcome(tokenizer, listed, tools), outcome(tokenizer, plain, tools)
            if isinstance(ours, PartsRefused):
                assert "Send content as a string" in ours.message
            elif isinstance(expected, TemplateRefused):
                assert isinstance(ours, TemplateRefused)
            else:
                assert ours == expected
            taken.setdefault(role, []).append(not isinstance(ours, PartsRefused))
    return taken


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", [*REAL_NAMES, *TEMPLATE_NAMES])
def test_templates_of_strangers_write_parts_as_the_joined_string(name: str) -> None:
    taken = check(real_tokenizer(name))
    differing = {"gemma3", "template:gemma4_v2", "template:gemma4_v5"}
    assert all(itertools.chain(*taken.values())) is (name not in differing)
    # One part without white space is taken even there.
    assert taken["user"][0]


@pytest.mark.real_tokenizer
def test_gemma_3_trims_each_part_so_inner_space_is_refused() -> None:
    assert check(real_tokenizer("gemma3"))["user"] == [True, True, True, False, True] * 2


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "needs_tools"])
def test_our_families_take_strings(name: str, make_tokenizer: MakeTokenizer) -> None:
    family = FAMILIES[name]
    assert all(itertools.chain(*check(make_tokenizer(family.template, family.special, family.eos)).values()))


def test_a_template_that_reads_parts_gets_them_without_other_keys(
    make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer(LISTS.replace("@@", "{{ p.text }}"))
    given: list[Any] = []
    real = Template.render

    def render(self: Template, messages: Sequence[Any], **options: Any) -> str:
        given.append(messages)
        return real(self, messages, **options)

    monkeypatch.setattr(Template, "render", render)
    assert tokenizer.render_text([{"role": "user", "content": parts("a", "b")}]).count("ab") == 1
    assert given[-1][0]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


REFUSED = {
    "a separator": ("{{ p.text }}{{ '\n' if not loop.last }}", ("a", "b")),
    "a mark": ("{{ '*' + p.text }}", ("a",)),
    "the first alone": ("{{ p.text if loop.first }}", ("a", "b")),
    "another type": ("{{ p.text if p.type == 'input_text' }}", ("a",)),
    "trimmed": ("{{ p.text | trim }}", ("a ", "b")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_list_that_is_written_otherwise_is_refused(name: str, make_tokenizer: MakeTokenizer) -> None:
    printed, texts = REFUSED[name]
    tokenizer = make_tokenizer(LISTS.replace("@@", printed))
    messages = [{"role": "user", "content": parts(*texts)}]
    for render in (tokenizer.render_prompt, tokenizer.render_text, tokenizer.render_conversation):
        with pytest.raises(PartsRefused, match=r"neither takes text parts nor strings alike.*as a string"):
            render(messages)
    with pytest.raises(PartsRefused):
        rerender(tokenizer, messages)


def test_a_template_that_writes_no_strings_is_told_apart(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LISTS.replace("{{ m.content }}", "").replace("@@", "{{ p.text }}"))
    with pytest.raises(PartsRefused, match="does not write the content of user messages where it is a string"):
        tokenizer.render_prompt([{"role": "user", "content": parts("a")}])


def test_a_word_that_the_template_looks_for_is_looked_for_in_parts_too(make_tokenizer: MakeTokenizer) -> None:
    template = "{% if '/no_think' in messages[0].content %}{{ '<think>' }}{% endif %}" + LISTS
    tokenizer = make_tokenizer(template.replace("@@", "{{ p.text }}"))
    tokenizer.render_prompt([{"role": "user", "content": parts("hello")}])
    with pytest.raises(PartsRefused):
        tokenizer.render_prompt([{"role": "user", "content": parts("/no_think hello")}])


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


@pytest.mark.parametrize(
    "name", ["gemma3", "llama3_2", "qwen3", "mistral_nemo", "template:qwen3_vl", "template:glm4moe"]
)
@pytest.mark.real_tokenizer
def test_deltas_of_parts_are_those_of_the_joined_string(name: str) -> None:
    tokenizer = real_tokenizer(name)
    sampled = tokenizer.encode("It is", control=False)
    said = {"role": "assistant", "content": "It is"}
    new = [({"role": "user", "content": given},) for given in (parts("one", "-two"), "one-two")]
    for history in ([USER, said], [{**USER, "content": parts("What")}, {**said, "content": parts("It is")}]):
        listed, plain = (
            tokenizer.render_delta(messages, sampled=sampled, history=history, tools=None) for messages in new
        )
        assert listed == plain


def test_a_delta_of_a_template_that_counts_on_history(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(FAMILIES["rounds"].template)
    new = [{"role": "user", "content": "next"}]
    deltas = [
        tokenizer.render_delta(new, sampled=[5], history=[{"role": "user", "content": given}, {"role": "assistant"}])
        for given in (parts("a", "b"), "ab")
    ]
    assert deltas[0] == deltas[1]


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


def test_plain_strings_are_not_looked_into(make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer(LISTS.replace("@@", "{{ p.text }}"))
    messages = [USER, {"role": "assistant", "content": "y"}, {"role": "user", "content": None}]
    monkeypatch.setattr(Template, "_content_parts", None)
    template = tokenizer._template(None)
    assert template.settle_parts(messages) is messages
    tokenizer.render_prompt(messages[:1])
