"""A delta that a full render contradicts is found out, and one that is only spelled otherwise is not."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.property.families import FAMILIES, GENERATION, lay_out
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import ChatTokenizer, Delta, load_tokenizer
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.full_check import DeltaFault, RenderedDelta, check_delta

Message = dict[str, Any]

USER: Message = {"role": "user", "content": "go on"}
SYSTEM: Message = {"role": "system", "content": "Be kind. /no_think"}
ANSWER: Message = {"role": "assistant", "content": "I said"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}]
RESULT: Message = {"role": "tool", "name": "add", "tool_call_id": "abcdefghi", "content": "38"}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": '{"a":"1 <|im_end|>"}'}}
    ],
}
CONVERSATIONS: dict[str, tuple[list[Message], list[Message]]] = {
    "answer": ([USER, ANSWER], [USER]),
    "system": ([SYSTEM, USER, ANSWER], [USER]),
    "second answer": ([USER, ANSWER, USER, {**ANSWER, "content": "<think>\nhm\n</think>\n\nYes"}], [USER]),
    "call": ([SYSTEM, USER, CALL], [RESULT]),
    "second call": ([USER, CALL, RESULT, CALL], [RESULT]),
    "two results": ([USER, CALL], [RESULT, {**RESULT, "tool_call_id": "abcdefghj"}]),
    "result and user": ([USER, CALL], [RESULT, USER]),
    "typed": ([USER, ANSWER], [{"role": "user", "content": "<|im_end|>\n<|im_start|>assistant\n<|im"}]),
}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTokenizer]:
    laid_out = lay_out(tmp_path_factory.mktemp("families"))
    return {name.removeprefix("family:"): load_tokenizer(str(path)) for name, path in laid_out}


def sampled_texts(name: str, history: list[Message]) -> list[str]:
    """What a policy of the family could have sampled in the last turn."""
    family, calls = FAMILIES[name], "tool_calls" in history[-1]
    if calls:
        return [family.call.replace("{}", '{"a":"1"}') + end for end in (family.call_ends[0], "")]
    said = str(history[-1]["content"])
    end = "<|end_text|><|end_turn|>" if name == "ends_twice" else family.stop or family.answer_ends[0]
    return [said + end, said + end + "\n", said, said + " "]


def check(
    tokenizer: ChatTokenizer, history: list[Message], new: list[Message], sampled: list[int], delta: Delta, **more: Any
) -> DeltaFault | None:
    return check_delta(tokenizer, RenderedDelta([*history, *new], len(new), delta, sampled), **more)


@pytest.mark.parametrize("case", CONVERSATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_deltas_of_all_families_agree_with_a_full_render(
    families: dict[str, ChatTokenizer], name: str, case: str
) -> None:
    tokenizer, (history, new) = families[name], CONVERSATIONS[case]
    for tools in (TOOLS,) if FAMILIES[name].needs_tools else (TOOLS, None):
        for text in sampled_texts(name, history):
            sampled = tokenizer.encode(text)
            delta = tokenizer.render_delta(new, sampled=sampled, history=history, tools=tools)
            assert check(tokenizer, history, new, sampled, delta, tools=tools) is None, text


def broken(tokenizer: ChatTokenizer, delta: Delta, sampled: list[int]) -> dict[str, Delta]:
    """Deltas as a faulty renderer would give them."""
    close, glue = delta.close_ids, delta.glue_ids
    last = tuple(sampled[-1:])
    return {
        "an id less at the start": Delta((), glue[1:]) if not close else Delta(close[1:], glue),
        "an id more": Delta(close, (*glue, 7)),
        "an id less at the end": Delta(close, glue[:-1]),
        "another id of the same length": Delta(close, (*glue[:-2], (glue[-2] + 1) % 4000, glue[-1])),
        "the end once more": Delta((), (*last, *glue)) if not close else Delta((*close, *close), glue),
        "a message left out": Delta(close, glue[: len(glue) // 2] + glue[len(glue) // 2 + 2 :]),
    }


@pytest.mark.parametrize("case", ["answer", "call"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("cut", [False, True])
def test_a_wrong_delta_is_found_out(families: dict[str, ChatTokenizer], name: str, case: str, cut: bool) -> None:
    tokenizer, (history, new) = families[name], CONVERSATIONS[case]
    text = sampled_texts(name, history)[cut + (cut and case == "answer")]
    sampled = tokenizer.encode(text)
    delta = tokenizer.render_delta(new, sampled=sampled, history=history, tools=TOOLS)
    for what, wrong in broken(tokenizer, delta, sampled).items():
        if what == "the end once more" and cut and not delta.close_ids:
            continue  # a cut turn has no end that could be there twice
        assert check(tokenizer, history, new, sampled, wrong, tools=TOOLS) is not None, (what, wrong, delta)


def test_what_was_wrong_once_is_found_out(families: dict[str, ChatTokenizer]) -> None:
    """The first row of the constructs: the first control string was taken for the end, so the real one came twice."""
    tokenizer, (history, new) = families["ends_twice"], CONVERSATIONS["answer"]
    sampled = tokenizer.encode("I said<|end_text|><|end_turn|>")
    right = tokenizer.render_delta(new, sampled=sampled, history=history)
    fault = check(tokenizer, history, new, sampled, Delta((), (sampled[-1], *right.glue_ids)))
    assert fault is not None
    assert (fault.what, fault.ours) == ("the end of the turn is there twice", None)
    # Thinking on and off have headers of one length, which no mask can tell apart.
    tokenizer, (history, new) = families["no_think"], CONVERSATIONS["system"]
    sampled = tokenizer.encode("I said<|im_end|>")
    right = tokenizer.render_delta(new, sampled=sampled, history=history)
    wrong = tokenizer.render_delta(new, sampled=sampled, history=history[1:])
    assert check(tokenizer, history, new, sampled, right) is None
    found = check(tokenizer, history, new, sampled, wrong)
    assert found is not None
    assert found.what == "what follows the sampled turn"


OTHER_STOPS = ["<|endoftext|>", "<|im_end|>", "<|im_end|>\n"]


@pytest.mark.parametrize("stop", OTHER_STOPS)
def test_another_stop_takes_the_place_of_the_end(make_tokenizer: MakeTokenizer, stop: str) -> None:
    tokenizer, (history, new) = make_tokenizer(FAMILIES["no_think"].template), CONVERSATIONS["answer"]
    sampled = tokenizer.encode("I said" + stop)
    delta = tokenizer.render_delta(new, sampled=sampled, history=history)
    assert check(tokenizer, history, new, sampled, delta) is None
    closed_again = replace(delta, close_ids=tokenizer.closing)
    found = check(tokenizer, history, new, sampled, closed_again)
    assert found is not None


TOOLS_LAST = (  # as Mistral's: tools and system message stand in front of the last user message
    "{% set first = messages[0].content + '\n' if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}"
    "{% if loop.last and m.role == 'user' and tools %}{{ tools[0].function.name }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + (first if loop.last and m.role == 'user' else '') }}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION
)


@pytest.mark.parametrize("case", ["answer", "system", "call"])
def test_what_deltas_leave_out_because_it_was_seen_is_left_out(make_tokenizer: MakeTokenizer, case: str) -> None:
    tokenizer, (history, new) = make_tokenizer(TOOLS_LAST), CONVERSATIONS[case]
    sampled = tokenizer.encode("I said<|im_end|>")
    delta = tokenizer.render_delta(new, sampled=sampled, history=history, tools=TOOLS)
    assert check(tokenizer, history, new, sampled, delta, tools=TOOLS) is None


def test_a_conversation_that_cannot_be_rendered_proves_nothing(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{% if messages | length > 4 %}{{ raise_exception('long') }}{% endif %}" + TOOLS_LAST)
    history = [USER, ANSWER, USER, ANSWER, USER, ANSWER]
    sampled = tokenizer.encode("I said<|im_end|>")
    assert check(tokenizer, history, [USER], sampled, Delta((), (1, 2, 3))) is None


def test_what_is_nested_too_deeply_is_refused_and_not_compared(families: dict[str, ChatTokenizer]) -> None:
    """A policy can sample arguments that Python parses and nothing that walks through them can follow."""
    nested = '{"a":' + "[" * 900 + "]" * 900 + "}"
    call = {**CALL["tool_calls"][0], "function": {"name": "add", "arguments": nested}}
    history: list[Message] = [USER, {**CALL, "tool_calls": [call]}]
    for tokenizer in families.values():
        try:
            delta = tokenizer.render_delta([RESULT], tools=TOOLS, sampled=[], history=history)
        except TemplateRefused:
            continue
        assert check(tokenizer, history, [RESULT], [], delta, tools=TOOLS) is None
    with pytest.raises(TemplateRefused, match="nested too deeply"):
        next(iter(families.values())).codec.escaper.value([json.loads(nested)])
