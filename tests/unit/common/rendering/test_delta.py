"""The delta renderer on the tiny tokenizer and on templates made to be difficult."""

from typing import Any

import pytest
from tests.property.families import GENERATION, LOOP
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import (
    AssistantAppended,
    ChatTokenizer,
    ContentUnsafe,
    HistoryRewritten,
    RenderFailed,
    TemplateRefused,
    TurnEndNotFound,
)
from rolloutpool_common.rendering.control_tokens import NONCE

RESULT = {"role": "tool", "name": "add", "tool_call_id": "abcdefghi", "content": "38"}
USER = {"role": "user", "content": "go on"}


def text(tokenizer: ChatTokenizer, *messages: dict[str, Any], last: str | None = None, **kwargs: Any) -> str:
    """The delta as text, a synthesised close token in brackets."""
    sampled = tokenizer.closing if last is None else tokenizer.encode(last)
    delta = tokenizer.render_delta(messages, sampled=sampled, template_kwargs=kwargs)
    return (f"[{tokenizer.decode(delta.close_ids)}]" if delta.close_ids else "") + tokenizer.decode(delta.glue_ids)


def test_null_and_wire_forms_are_normalised(tiny: ChatTokenizer) -> None:
    nulls = {**RESULT, "content": None, "tool_calls": None, "name": None}
    assert text(tiny, nulls) == text(tiny, {**RESULT, "content": ""})


def test_assistant_messages_and_nothing_are_refused(tiny: ChatTokenizer) -> None:
    with pytest.raises(AssistantAppended):
        text(tiny, RESULT, {"role": "assistant", "content": "x"})
    with pytest.raises(TemplateRefused):
        text(tiny)


def test_unknown_role_is_refused_with_the_templates_reason(tiny: ChatTokenizer) -> None:
    for _ in range(2):  # the second comes from the cached verdict
        with pytest.raises(RenderFailed, match="unknown role moderator"):
            text(tiny, {"role": "moderator", "content": "x"})


def test_our_own_sentinel_is_refused_as_content(tiny: ChatTokenizer) -> None:
    with pytest.raises(ContentUnsafe):
        text(tiny, {**USER, "content": f"a {NONCE} b"})


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages if m.role == 'tool' %}{{ m.content }}{% endfor %}" + LOOP + GENERATION, "repeats"),
        (
            "{% for m in messages if m.role == 'tool' %}{{ m.content }}{% endfor %}"
            + LOOP.replace("in messages", "in messages if m.role != 'tool'")
            + GENERATION,
            "writes tool messages in front",
        ),
        (LOOP.replace("m.content", "(m.content if m.role != 'tool' else '')") + GENERATION, "leaves out tool messages"),
        (LOOP.replace("in messages", "in messages[::-1]") + GENERATION, "in front of"),
        (LOOP.replace("m.content", "m.content + m.content") + GENERATION, "repeats"),
    ],
)
def test_history_that_moves_is_refused(make_tokenizer: MakeTokenizer, template: str, why: str) -> None:
    tokenizer = make_tokenizer(template)
    with pytest.raises(HistoryRewritten, match=why):
        text(tokenizer, RESULT)


def test_a_template_that_drops_the_policys_turn_is_refused(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LOOP.replace("in messages", "in messages[-1:]") + GENERATION)
    with pytest.raises(TurnEndNotFound):
        text(tokenizer, USER)


def test_refusal_of_one_shape_does_not_spoil_another(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LOOP.replace("m.content", "(m.content if m.role != 'tool' else '')") + GENERATION)
    with pytest.raises(HistoryRewritten):
        text(tokenizer, RESULT)
    assert text(tokenizer, USER).endswith("go on<|im_end|>\n<|im_start|>assistant\n")


def test_verdict_depends_on_template_arguments(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LOOP.replace("m.content", "(m.content if not quiet else '')") + GENERATION)
    assert "go on" in text(tokenizer, USER, quiet=False)
    with pytest.raises(TemplateRefused):
        text(tokenizer, USER, quiet=True)


HEADER_STOPS = (  # the next header is what ends a turn
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.arguments | tojson + '</tool_call>' }}"
    "{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
HEADERS = ("<|user|>", "<|assistant|>", "<|tool|>", "<|system|>")


def test_a_sampled_header_is_not_written_again(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(HEADER_STOPS, HEADERS)
    assert tokenizer.close_id is None
    assert text(tokenizer, RESULT, last="<|tool|>") == "\n38<|assistant|>\n"
    assert text(tokenizer, RESULT, last="<|user|>") == "<|tool|>\n38<|assistant|>\n"
    assert text(tokenizer, USER, last="word") == "<|user|>\ngo on<|assistant|>\n"


def test_arguments_as_text_where_the_calls_are_of_earlier_turns(make_tokenizer: MakeTokenizer) -> None:
    template = LOOP.replace("m.content", "(m.tool_calls[0].function.arguments + '!' if m.tool_calls else m.content)")
    # What is written depends on the whole history, so that is rendered.
    tokenizer = make_tokenizer(template.replace("m.role", "m.role ~ messages|length") + GENERATION)
    call = {"id": RESULT["tool_call_id"], "type": "function", "function": {"name": "add", "arguments": {"a": 15}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    history: list[dict[str, Any]] = [USER, calling, RESULT, {"role": "assistant", "content": "It is 38."}]
    delta = tokenizer.render_delta([USER], sampled=tokenizer.closing, history=history)
    assert "user5\ngo on<|im_end|>" in tokenizer.decode(delta.glue_ids)


def test_a_printed_tool_name_must_be_known(make_tokenizer: MakeTokenizer) -> None:
    template = LOOP.replace("m.content", "(m.name or messages[1].tool_calls[0].function.name) + m.content")
    tokenizer = make_tokenizer("{% set x = namespace(n='') %}" + template.replace(
        "m.name or messages[1].tool_calls[0].function.name",
        "messages[loop.index0 - 1].tool_calls[0].function.name if m.role == 'tool' else ''",
    ) + GENERATION)  # fmt: skip
    nameless = {key: value for key, value in RESULT.items() if key != "name"}
    call = {"id": RESULT["tool_call_id"], "type": "function", "function": {"name": "add", "arguments": {"a": 15}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    delta = tokenizer.render_delta([nameless], sampled=tokenizer.closing, history=[USER, turn])
    assert "add38" in tokenizer.decode(delta.glue_ids)
    with pytest.raises(HistoryRewritten, match="Send one"):
        tokenizer.render_delta([nameless], sampled=tokenizer.closing, history=[USER])


def test_named_templates_are_chosen_by_the_presence_of_tools(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(
        {"default": LOOP + GENERATION, "tool_use": LOOP.replace("m.content", "'T' + m.content") + GENERATION}
    )
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    plain = tokenizer.render_delta([USER], sampled=tokenizer.closing)
    with_tools = tokenizer.render_delta([USER], sampled=tokenizer.closing, tools=tools)
    assert "Tgo on" not in tokenizer.decode(plain.glue_ids)
    assert "Tgo on" in tokenizer.decode(with_tools.glue_ids)


TWICE = (  # an answer ends by the same control string twice
    "{% for m in messages %}{{ '<|start|>' + m.role + ':' + m.content + '<|end|>' }}"
    "{{ 'checked<|end|>' if m.role == 'assistant' else '' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant:' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("last", "expected"),
    [("fine<|end|>checked<|end|>", ""), ("fine<|end|>", "[checked<|end|>]")],
    ids=["both sampled", "first sampled"],
)
def test_of_an_end_that_has_the_stop_twice_nothing_is_written_twice(
    make_tokenizer: MakeTokenizer, last: str, expected: str
) -> None:
    tokenizer = make_tokenizer(TWICE, ("<|start|>", "<|end|>"), eos="<|end|>")
    assert text(tokenizer, USER, last=last) == f"{expected}<|start|>user:go on<|end|><|start|>assistant:"


SHOUTED = (  # looks for one text in the real history
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{{ '!' if messages[0].content == 'shout' else '' }}{% endif %}"
)


def test_what_the_real_history_changes_is_written_as_it_says(make_tokenizer: MakeTokenizer) -> None:
    """A probe invents its conversations, so it cannot know what a template does at one text only."""
    tokenizer = make_tokenizer(LOOP + SHOUTED)
    for said, written in (("shout", "assistant\n!"), ("whisper", "assistant\n")):
        history = [{"role": "user", "content": said}, {"role": "assistant", "content": "sure"}]
        delta = tokenizer.render_delta([USER], sampled=tokenizer.closing, history=history)
        assert tokenizer.decode(delta.glue_ids).endswith(written)
