"""Constructs of strangers' templates, the smallest family for each: exact, or refused with the right reason.

Each of them was once rendered wrong without anybody noticing, because trainer and pool share the renderer. The expected
text is the template's own: a full render of the real conversation, cut behind what the policy sampled.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.property.families import GENERATION, LOOP
from tests.support.tiny_tokenizers import MakeTokenizer, write_tokenizer

from rolloutpool_common.rendering import ChatTokenizer, HistoryRewritten, RenderFailed, load_tokenizer

Message = dict[str, Any]

USER: Message = {"role": "user", "content": "go on"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}]


def said(text: str = "I said") -> Message:
    return {"role": "assistant", "content": text}


def calling(call_id: str = "abcdefghi") -> Message:
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(call_id: str = "abcdefghi", content: str = "38") -> Message:
    return {"role": "tool", "name": "add", "tool_call_id": call_id, "content": content}


def delta(tokenizer: ChatTokenizer, history: list[Message], new: list[Message], sampled: str, **options: Any) -> str:
    found = tokenizer.render_delta(new, sampled=tokenizer.encode(sampled), history=history, **options)
    return tokenizer.decode([*found.close_ids, *found.glue_ids])


def behind(tokenizer: ChatTokenizer, messages: list[Message], sampled: str, **options: Any) -> str:
    """The full render, behind the last place where it says what was sampled."""
    whole = tokenizer.render_text(messages, **options)
    return whole[whole.rindex(sampled) + len(sampled) :]


ENDS_TWICE = (
    "{% for m in messages %}{{ '<|turn|>' + m.role + '<|text|>' + m.content + '<|end_text|><|end_turn|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant<|text|>' }}{% endif %}"
)


@pytest.mark.parametrize("sampled", ["I said", "I said<|end_text|>", "I said<|end_text|><|end_turn|>"])
def test_an_end_of_several_control_strings_is_written_once(make_tokenizer: MakeTokenizer, sampled: str) -> None:
    control = ("<|turn|>", "<|text|>", "<|end_text|>", "<|end_turn|>")
    tokenizer = make_tokenizer(ENDS_TWICE, control, eos="<|endoftext|>")
    history = [USER, said()]
    assert tokenizer.close_token == "<|end_turn|>"
    assert delta(tokenizer, history, [USER], sampled) == behind(tokenizer, [*history, USER], sampled)


NO_THINK = (
    "{% set quiet = messages[0].role == 'system' and '/no_think' in messages[0].content %}"
    + LOOP
    + GENERATION
    + "{% if add_generation_prompt %}{{ '<think></think>' if quiet else '<think>\n' }}{% endif %}"
)


def test_a_delta_that_depends_on_what_is_not_given_is_refused(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(NO_THINK)
    with pytest.raises(HistoryRewritten, match="depends on the system"):
        tokenizer.render_delta([USER], sampled=tokenizer.closing)


PLAIN_HEADERS = (
    "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content }}"
    "{{ eos_token + '\n\n' if m.role == 'assistant' else '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant:\n' }}{% endif %}"
)


@pytest.mark.parametrize("sampled", ["I said", "I said<|endoftext|>", "I said<|endoftext|>\n"])
def test_a_separator_behind_the_end_is_kept(make_tokenizer: MakeTokenizer, sampled: str) -> None:
    tokenizer = make_tokenizer(PLAIN_HEADERS, eos="<|endoftext|>")
    history = [USER, said()]
    assert delta(tokenizer, history, [USER], sampled) == behind(tokenizer, [*history, USER], sampled)


BUILT_HEADERS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def test_a_header_that_is_built_is_control_and_cannot_be_typed(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, BUILT_HEADERS, ("<|tool|>", "<|user|>", "<|assistant|>"))
    # Not special: only what the template writes makes them control.
    tokenizer_json = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    for token in tokenizer_json["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in ("<|tool|>", "<|user|>", "<|assistant|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json), encoding="utf-8")
    tokenizer = load_tokenizer(str(tmp_path))
    header = tokenizer.token_id("<|tool|>")
    assert header is not None
    found = tokenizer.render_delta([result(content="38<|tool|>")], sampled=tokenizer.closing, history=[USER, calling()])
    assert [*found.close_ids, *found.glue_ids].count(header) == 1
    assert "38<|tool|>" in tokenizer.decode(found.glue_ids)


OPEN_TURN = (  # as Apertus: results are written into the turn that called, and the policy goes on in it
    "{% set turn = namespace(open=false) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if not turn.open %}{{ '<|start|>' }}{% endif %}{{ m.content }}{% set turn.open = m.tool_calls is defined %}"
    "{% for c in m.tool_calls or [] %}{{ '<|calls|>[' + c.function.arguments | tojson + ']<|called|>' }}{% else %}"
    "{{ '<|end|>' }}{% endfor %}{% elif m.role == 'tool' %}{{ '[' + m.content + ']' }}{% else %}"
    "{{ ('<|end|>' if turn.open else '') + '<|user|>' + m.content }}{% set turn.open = false %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not turn.open %}{{ '<|start|>' }}{% endif %}"
)


ENDS_LATE = OPEN_TURN.replace("{% else %}{{ '<|end|>' }}{% endfor %}", "{% endfor %}").replace(
    "m.tool_calls is defined", "true"
)


@pytest.mark.parametrize("template", [OPEN_TURN, ENDS_LATE])
@pytest.mark.parametrize("cut", ['[{"a"', '[{"a": 1}]'])
def test_a_cut_call_whose_results_belong_to_its_turn_is_closed(
    make_tokenizer: MakeTokenizer, cut: str, template: str
) -> None:
    control = ("<|start|>", "<|calls|>", "<|called|>", "<|end|>", "<|user|>")
    tokenizer = make_tokenizer(template, control, eos="<|end|>")
    assert tokenizer.close_token == "<|end|>"
    whole = '<|calls|>[{"a": 1}]<|called|>'
    assert delta(tokenizer, [USER, calling()], [result()], whole) == "[38]"
    assert delta(tokenizer, [USER, calling()], [result(), USER], whole) == "[38]<|end|><|user|>go on<|start|>"
    for new in ([result()], [result(), USER]):
        behind = delta(tokenizer, [USER, calling()], new, whole)
        assert delta(tokenizer, [USER, calling()], new, f"<|calls|>{cut}") == f"<|called|>{behind}"
    assert delta(tokenizer, [USER, calling()], [result()], f"{whole}<|end|>") == "[38]"
    # Without a result it is an answer like any other.
    assert delta(tokenizer, [USER, said("<|calls|>[")], [USER], "<|calls|>[") == "<|end|><|user|>go on<|start|>"


STOPS_TWICE = (  # as Apriel: the template writes its stop, and then the one that the policy sampled
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '\n<|end|>\n' }}"
    "{{ '<|end|>' if m.role == 'assistant' else '' }}{% endfor %}{{ '<|assistant|>' if add_generation_prompt else '' }}"
)
ENDED_BY_HEADERS = (  # as GLM trains: the next header is what policies stop at
    "{% for m in messages %}{{ m.content + '<|user|>' if m.role == 'assistant' else '' }}{% if m.role == 'user' %}"
    "{{ '<|user|>' if loop.first else '' }}{{ '\n' + m.content + '<|assistant|>' }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "sampled", "begins"),
    [
        (STOPS_TWICE, "I said", "\n<|end|>\n<|end|><|user|>"),
        (STOPS_TWICE, "I said\n<|end|>", "\n<|end|><|user|>"),
        (STOPS_TWICE, "I said\n<|end|>\n<|end|>", "<|user|>"),
        (STOPS_TWICE, "I said<|end|>", "<|user|>"),
        (STOPS_TWICE, "I said<|im_end|>", "<|user|>"),
        (ENDED_BY_HEADERS, "I said<|user|>", "\ngo on"),
        (ENDED_BY_HEADERS, "I said<|im_end|>", "<|user|>\ngo on"),
        (ENDED_BY_HEADERS, "I said", "<|user|>\ngo on"),
    ],
)
def test_a_turn_is_ended_once_and_each_header_is_written(
    make_tokenizer: MakeTokenizer, template: str, sampled: str, begins: str
) -> None:
    tokenizer = make_tokenizer(template, ("<|end|>", "<|user|>", "<|assistant|>"), eos="<|end|>")
    assert delta(tokenizer, [USER, said()], [USER], sampled).startswith(begins)


def test_the_models_own_stop_ids_end_a_turn(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, LOOP + GENERATION, ("<|stop|>",))
    stop = load_tokenizer(str(tmp_path)).token_id("<|stop|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop, 2]}), encoding="utf-8")
    tokenizer = load_tokenizer(str(tmp_path))
    assert stop in tokenizer.stop_ids
    assert delta(tokenizer, [USER, said()], [USER], "I said<|stop|>").startswith("\n<|im_start|>user")
    # White space that was sampled after it is not written again.
    assert delta(tokenizer, [USER, said()], [USER], "I said<|stop|>\n").startswith("<|im_start|>user")


CHECKED_IDS = (
    "{% for m in messages %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION
)


def test_a_refused_value_does_not_refuse_the_next_one(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(CHECKED_IDS)
    for _ in range(2):
        with pytest.raises(RenderFailed, match="nine characters"):
            delta(tokenizer, [USER, calling("call_1")], [result("call_1")], "x<|im_end|>")
        assert "38" in delta(tokenizer, [USER, calling()], [result()], "x<|im_end|>")


def test_earlier_messages_behind_the_turn_are_refused(make_tokenizer: MakeTokenizer) -> None:
    reminded = LOOP.replace("m.content", "m.content + (messages[0].content if loop.last else '')") + GENERATION
    with pytest.raises(HistoryRewritten, match="earlier messages"):
        delta(make_tokenizer(reminded), [{"role": "user", "content": "first"}, said()], [USER], "I said<|im_end|>")


SYSTEM_LAST = (  # as Mistral's: the system message stands in front of the last user message
    "{% set first = messages[0].content if messages[0].role == 'system' else none %}"
    "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ first + '\n\n' if first and loop.last and m.role == 'user' else '' }}{{ m.content + '<|im_end|>\n' }}"
    "{% endfor %}" + GENERATION
)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_system_message_that_moves_to_the_last_message_is_not_shown_twice(
    make_tokenizer: MakeTokenizer, rounds: int
) -> None:
    """The check against the real history took the difference for a dependence, and repeated the system message."""
    tokenizer = make_tokenizer(SYSTEM_LAST)
    history = [{"role": "system", "content": "Be kind."}, *(m for _ in range(rounds) for m in (USER, said()))]
    found = delta(tokenizer, history, [USER], "I said<|im_end|>")
    assert found == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert not tokenizer.deltas_read_history


TOOLS_WITH_SYSTEM = (  # as muse_glimmer's: each system message shows them; without one a line of its own does
    "{% set late = messages | selectattr('role', 'equalto', 'system') | list %}{% if not late and tools %}"
    "{{ tools[0].function.name }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ tools[0].function.name if tools and m.role == 'system' else '' }}{{ '<|im_end|>\n' }}{% endfor %}" + GENERATION
)


def test_tools_that_may_move_to_a_late_system_message_are_a_refusal(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(TOOLS_WITH_SYSTEM)
    late = [{"role": "system", "content": "Be brief."}]
    with pytest.raises(HistoryRewritten, match="late system message"):
        delta(tokenizer, [USER, said()], late, "I said<|im_end|>", tools=TOOLS)
    assert "Be brief." in delta(tokenizer, [USER, said()], late, "I said<|im_end|>")


OTHER_END_IN_HISTORY = (  # as gpt-oss': an answer ends otherwise before a message than at the end of the conversation
    "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}"
    "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)


@pytest.mark.parametrize(
    "sampled", ["I said<|message|>", "I said<|start|>", "I said<|end|>", "I said<|return|>", "I said"]
)
def test_a_sampled_token_of_a_header_is_no_end(make_tokenizer: MakeTokenizer, sampled: str) -> None:
    special = ("<|start|>", "<|message|>", "<|end|>", "<|return|>")
    tokenizer = make_tokenizer(OTHER_END_IN_HISTORY, special, eos="<|return|>")
    found = delta(tokenizer, [USER, said()], [USER], sampled)
    assert found.removeprefix("<|end|>") == "<|start|>user<|message|>go on<|end|><|start|>assistant"
    assert found.startswith("<|end|>") is not sampled.endswith(("<|end|>", "<|return|>"))


CALL_OF_THE_TURN = (  # a result repeats the id of the call that it answers, as the policy's turn has it
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'tool' %}{{ messages[loop.index0 - 1].tool_calls[0].id + ': ' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION
)


def test_a_control_string_in_a_call_id_does_not_become_a_control_token(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(CALL_OF_THE_TURN)
    call_id = "x<|im_start|>"
    new, sampled = [result(call_id)], tokenizer.encode("x<|im_end|>")
    found = tokenizer.render_delta(new, sampled=sampled, history=[USER, calling(call_id)])
    start = tokenizer.token_id("<|im_start|>")
    assert [*found.close_ids, *found.glue_ids].count(start or -1) == 2  # of the result and of the generation prompt
