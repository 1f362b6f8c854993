"""The delta renderer on the tiny tokenizer and on templates made to be difficult."""

from typing import Any

import pytest
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


def test_appends_what_the_template_writes(tiny: ChatTokenizer) -> None:
    assert text(tiny, USER) == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert text(tiny, RESULT, RESULT, USER, enable_thinking=True) == (
        "\n<|im_start|>tool\n<tool_response>\n38\n</tool_response><|im_end|>" * 2
        + "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


@pytest.mark.parametrize("last", ["<|im_end|>", "<|endoftext|>"])
def test_a_sampled_stop_token_is_not_doubled(tiny: ChatTokenizer, last: str) -> None:
    assert text(tiny, USER, last=last).startswith("\n<|im_start|>user")


@pytest.mark.parametrize("last", ["word", "\n", "<|im_start|>", "</think>"])
def test_a_turn_without_its_stop_token_is_closed(tiny: ChatTokenizer, last: str) -> None:
    assert text(tiny, USER, last=last).startswith("[<|im_end|>]\n<|im_start|>user")


def test_a_turn_without_any_token_is_closed(tiny: ChatTokenizer) -> None:
    assert tiny.render_delta([USER], sampled=()).close_ids == (tiny.close_id,)


def test_null_and_wire_forms_are_normalised(tiny: ChatTokenizer) -> None:
    nulls = {**RESULT, "content": None, "tool_calls": None, "name": None}
    assert text(tiny, nulls) == text(tiny, {**RESULT, "content": ""})


def test_delta_continues_the_whole_prompt(tiny: ChatTokenizer) -> None:
    history = [USER, {"role": "assistant", "content": "sure"}]
    whole = tiny.render_prompt([*history, RESULT])
    before = tiny.render_prompt(history)
    delta = tiny.render_delta([RESULT], sampled=tiny.closing)
    close = len(before) - 1 - before[::-1].index(tiny.close_id or 0)
    assert whole == [*before[: close + 1], *delta.glue_ids]


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


LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
GENERATION = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


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


TWO_CLOSES = (
    "{% for m in messages %}{{ '<|start|>' + m.role + ':' + m.content + '<|end_text|><|end_turn|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant:' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("<|end_turn|>", "<|start|>user:go on<|end_text|><|end_turn|><|start|>assistant:"),
        ("<|end_text|>", "[<|end_turn|>]<|start|>user:go on<|end_text|><|end_turn|><|start|>assistant:"),
        ("word", "[<|end_text|><|end_turn|>]<|start|>user:go on<|end_text|><|end_turn|><|start|>assistant:"),
    ],
)
def test_two_closing_tokens_are_each_written_once(make_tokenizer: MakeTokenizer, last: str, expected: str) -> None:
    tokenizer = make_tokenizer(TWO_CLOSES, ("<|start|>", "<|end_text|>", "<|end_turn|>"), eos="<|end_turn|>")
    assert text(tokenizer, USER, last=last) == expected


CALL_CLOSES = (  # a call ends otherwise than an answer, and an answer in history otherwise than the last one
    "{% for m in messages %}{{ '<|start|>' + m.role + ':' }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson + '<|call|>' }}"
    "{% else %}{{ m.content + ('<|return|>' if loop.last and m.role == 'assistant' else '<|end|>') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant:' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("message", "last", "expected"),
    [
        (RESULT, "<|call|>", "<|start|>tool:38<|end|><|start|>assistant:"),
        (RESULT, "word", "[<|call|>]<|start|>tool:38<|end|><|start|>assistant:"),
        (USER, "<|return|>", "<|start|>user:go on<|end|><|start|>assistant:"),
        (USER, "word", "[<|end|>]<|start|>user:go on<|end|><|start|>assistant:"),
    ],
)
def test_each_kind_of_turn_closes_its_own_way(
    make_tokenizer: MakeTokenizer, message: dict[str, str], last: str, expected: str
) -> None:
    special = ("<|start|>", "<|end|>", "<|call|>", "<|return|>")
    assert text(make_tokenizer(CALL_CLOSES, special, eos="<|return|>"), message, last=last) == expected


def test_arguments_as_text_where_the_template_wants_text(make_tokenizer: MakeTokenizer) -> None:
    template = LOOP.replace("m.content", "(m.tool_calls[0].function.arguments + '!' if m.tool_calls else m.content)")
    assert "38<|im_end|>" in text(make_tokenizer(template + GENERATION), RESULT)


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


def test_white_space_behind_the_close_token_is_swallowed_as_in_history(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LOOP + GENERATION)
    delta = tokenizer.render_delta([USER], sampled=tokenizer.closing)
    whole = tokenizer.encode("<|im_end|>" + tokenizer.decode(delta.glue_ids))
    assert whole == [tokenizer.close_id, *delta.glue_ids]


def test_named_templates_are_chosen_by_the_presence_of_tools(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(
        {"default": LOOP + GENERATION, "tool_use": LOOP.replace("m.content", "'T' + m.content") + GENERATION}
    )
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    plain = tokenizer.render_delta([USER], sampled=tokenizer.closing)
    with_tools = tokenizer.render_delta([USER], sampled=tokenizer.closing, tools=tools)
    assert "Tgo on" not in tokenizer.decode(plain.glue_ids)
    assert "Tgo on" in tokenizer.decode(with_tools.glue_ids)


CALLS_FIRST = (  # results stand inside the policy's turn, in front of what it says; the turn stops where they begin
    "{% for m in messages %}{% if m.role != 'tool' %}{{ '<|turn>' + m.role + '\n' }}"
    "{% for c in m.tool_calls or [] %}{{ '<|call>' + c.function.arguments | tojson + '<call|><|result>' }}{% endfor %}"
    "{% if m.tool_calls and loop.nextitem and loop.nextitem.role == 'tool' %}{{ loop.nextitem.content + '<result|>' }}"
    "{% endif %}{{ m.content }}{% if not m.tool_calls %}{{ '<turn|>\n' }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|turn>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("last", "expected"), [("<|result>", "38<result|>"), ("<call|>", "[<|result>]38<result|>")], ids=["stopped", "cut"]
)
def test_results_inside_the_policys_turn(make_tokenizer: MakeTokenizer, last: str, expected: str) -> None:
    special = ("<|turn>", "<turn|>", "<|call>", "<call|>", "<|result>", "<result|>")
    assert text(make_tokenizer(CALLS_FIRST, special, eos="<turn|>"), RESULT, last=last) == expected


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


def test_another_stop_stands_for_the_end_also_where_headers_are_text(make_tokenizer: MakeTokenizer) -> None:
    """The end of the system message stood for the next header, and the turn was ended twice."""
    tokenizer = make_tokenizer(
        "system: Help.<|im_end|>{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I said"}]
    sampled = tokenizer.encode("I said<|endoftext|>")
    found = tokenizer.render_delta([{"role": "user", "content": "go on"}], sampled=sampled, history=history)
    assert tokenizer.decode([*found.close_ids, *found.glue_ids]) == "user: go on<|im_end|>assistant: "
