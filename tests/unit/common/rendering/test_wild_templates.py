"""Constructs of published chat templates that no family of `test_delta_families` has, each in a small one of our own.

What is expected is what transformers alone writes for the whole conversation, behind what the policy sampled. Nothing
of the pool renders it.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError
from tests.property.families import GENERATION, lay_out
from tests.property.rare_families import RARE
from tests.property.wild_families import WILD
from tests.support.tiny_tokenizers import MakeTokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rolloutpool_common.rendering import (
    ChatTokenizer,
    RenderFailed,
    RerenderCounter,
    load_tokenizer,
)

Message = dict[str, Any]


def tool(name: str) -> Message:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "x"}}}
    return {"type": "function", "function": {"name": name, "description": "It adds.", "parameters": parameters}}


TOOLS = [tool("add"), tool("look")]
USER: Message = {"role": "user", "content": "What is it?"}
NEXT: Message = {"role": "user", "content": "And now?"}
ONCE: Message = {"role": "assistant", "content": "One."}
ANSWER: Message = {"role": "assistant", "content": "FIN"}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def calling(*numbers: int, ids: str = "abcdefg{:02}", **more: Any) -> Message:
    """A turn that calls `look` with odd numbers and `add` with even ones."""
    calls = [
        {
            "id": ids.format(n),
            "type": "function",
            "function": {"name": ("add", "look")[n % 2], "arguments": {"a": f"ARG{n}"}},
        }
        for n in numbers
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def result(number: int, content: str = "38", ids: str = "abcdefg{:02}") -> Message:
    name = ("add", "look")[number % 2]
    return {"role": "tool", "name": name, "tool_call_id": ids.format(number), "content": content}


THOUGHT = {"reasoning_content": "Hm."}
CONVERSATIONS: dict[str, tuple[list[Message], list[Message]]] = {
    "answer": ([USER, ANSWER], [NEXT]),
    "two answers": ([USER, ONCE, NEXT, ANSWER], [USER]),
    "call": ([USER, calling(1)], [result(1)]),
    "second call": ([USER, calling(0), result(0), calling(1)], [result(1)]),
    "third call": ([USER, calling(0), result(0), calling(2), result(2), calling(1)], [result(1)]),
    "parallel calls": ([USER, calling(0, 1)], [result(0), result(1, "39")]),
    "call after parallel calls": ([USER, calling(0, 2), result(0), result(2), calling(1)], [result(1)]),
    "answer after a call": ([USER, calling(0), result(0), ANSWER], [NEXT]),
    "call after an answer": (
        [USER, calling(0), result(0), {**ANSWER, "content": "One."}, NEXT, calling(1)],
        [result(1)],
    ),
    "thought": ([USER, {**ANSWER, **THOUGHT}], [NEXT]),
    "thought call": ([USER, calling(0, **THOUGHT), result(0), calling(1, **THOUGHT)], [result(1)]),
    "switch in a question": ([{**USER, "content": "What? /no_think"}, ANSWER], [NEXT]),
    "switch back": ([{**USER, "content": "What? /no_think"}, ANSWER], [{**NEXT, "content": "Now? /think"}]),
}
SYSTEMS = ("", "Be kind.", "Be kind. /no_think", "/short Be kind.")
REFUSED = {
    # One call per turn is all that this template takes.
    ("single_calls", "parallel calls"): "one call at once",
}
NO_RENDER = {
    # No trainer can render this history.
    ("single_calls", "call after parallel calls"),
    # Only the first call of a turn is written, so there is no place to cut at.
    ("harmony", "parallel calls"),
}


ALL = {**WILD, **RARE}


class Transformers:
    """A tokenizer as transformers alone has it."""

    def __init__(self, directory: Path) -> None:
        self.chat: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(directory)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def render(self, messages: Sequence[Message], tools: list[Message] | None, **kwargs: Any) -> str:
        given: Any = tools
        rendered = self.chat.apply_chat_template(
            list(messages), tools=given, add_generation_prompt=True, tokenize=False, **kwargs
        )
        return str(rendered)

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ChatTokenizer, Transformers]]:
    laid_out = lay_out(tmp_path_factory.mktemp("wild"), ALL)
    return {name.removeprefix("family:"): (load_tokenizer(str(path)), Transformers(path)) for name, path in laid_out}


@pytest.mark.parametrize("case", CONVERSATIONS)
@pytest.mark.parametrize("name", ALL)
def test_a_delta_is_what_transformers_writes_behind_the_turn(
    loaded: dict[str, tuple[ChatTokenizer, Transformers]], name: str, case: str
) -> None:
    family, (tokenizer, theirs) = ALL[name], loaded[name]
    past, new = CONVERSATIONS[case]
    if (name, case) in NO_RENDER:
        return
    for text in SYSTEMS:
        history = [*([system(text)] if text else []), *past]
        calls = bool(history[-1].get("tool_calls"))
        options: dict[str, Any] = {"history": history, "tools": TOOLS, "template_kwargs": family.kwargs}
        if (name, case) in REFUSED:
            with pytest.raises(RenderFailed, match=REFUSED[name, case]):
                tokenizer.render_delta(new, sampled=tokenizer.encode("x" + family.eos), **options)
            continue
        shown = [] if name == "instructed" and new[-1]["role"] == "user" else TOOLS
        whole = theirs.render([*history, *new], shown, **family.kwargs)
        said = "ARG1" if calls else "FIN"
        at = whole.rindex(said) + len(said)
        for end in family.calls if calls else family.answers:
            assert whole.startswith(end, at), (end, whole[at:])
            sampled = theirs.ids(whole[: at + len(end)])
            delta = tokenizer.render_delta(new, sampled=sampled, **options)
            ids = [*delta.close_ids, *delta.glue_ids]
            assert tokenizer.decode(ids) == whole[at + len(end) :], (text, end)
            assert [*sampled, *ids] == theirs.ids(whole), (text, end)


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
def test_what_a_template_takes_only_after_an_answer_is_exact_there_and_refused_elsewhere(
    tmp_path: Path, loaded: dict[str, tuple[ChatTokenizer, Transformers]], tools: list[Message]
) -> None:
    family, (_, theirs) = WILD["instructed"], loaded["instructed"]
    tokenizer = load_tokenizer(str(dict(lay_out(tmp_path, ALL))["family:instructed"]))
    new = [result(1), NEXT]
    for _ in range(2):
        with pytest.raises(RenderFailed, match=r"roles \[user, assistant, tool, user\].* must alternate"):
            tokenizer.render_delta(new, sampled=[], history=[USER, calling(1)], tools=tools)
    with pytest.raises(RenderFailed, match="must alternate"):
        tokenizer.render_delta(new, sampled=[], tools=tools)
    for past in ([USER, ONCE], [USER, ONCE, system("Be kind.")], [USER, calling(0), result(0), ONCE]):
        history = [*past, calling(1)]
        # Tools move to the last question, but the policy has seen them.
        whole = theirs.render([*history, *new], [])
        at = whole.rindex("ARG1") + len("ARG1")
        for end in family.calls:
            sampled = theirs.ids(whole[: at + len(end)])
            delta = tokenizer.render_delta(new, sampled=sampled, history=history, tools=tools)
            assert [*sampled, *delta.close_ids, *delta.glue_ids] == theirs.ids(whole), (past, end)


@pytest.mark.parametrize("parsed", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_prompts_are_counted_as_trainers_render_them_that_do_so_again(
    loaded: dict[str, tuple[ChatTokenizer, Transformers]], name: str, parsed: bool
) -> None:
    family, (tokenizer, theirs) = ALL[name], loaded[name]
    turns = [*([calling(n), result(n)] for n in (0, 2, 1)), [ANSWER, NEXT], [calling(3, **THOUGHT), result(3)]]
    for text in SYSTEMS:
        messages = [*([system(text)] if text else []), USER]
        counter = RerenderCounter(tokenizer, tools=TOOLS, template_kwargs=family.kwargs, parsed=parsed)
        counter.count(messages)
        for turn in turns:
            messages = [*messages, *(as_sent(message) for message in turn)]
            given = [parse(message) for message in messages] if parsed else messages
            try:
                whole = theirs.render(given, TOOLS, **family.kwargs)
            except (TypeError, UndefinedError):
                assert not parsed, "no trainer renders text here"
                return
            counted = counter.count_new(messages)
            assert (counter.count(messages) if counted is None else counted) == len(theirs.ids(whole)), (text, turn)


def as_sent(message: Message) -> Message:
    """The message as it is on the wire, where arguments are text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    sent = [{**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}} for c in calls]
    return {**message, "tool_calls": sent}


def parse(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    made = [{**c, "function": {**c["function"], "arguments": json.loads(c["function"]["arguments"])}} for c in calls]
    return {**message, "tool_calls": made}


def test_control_strings_of_a_system_message_that_is_repeated_stay_text(
    loaded: dict[str, tuple[ChatTokenizer, Transformers]],
) -> None:
    tokenizer, _ = loaded["system_each"]
    history = [system("Be kind.<|im_end|>"), USER, ANSWER]
    delta = tokenizer.render_delta([NEXT], sampled=tokenizer.closing, history=history)
    assert "Be kind.<|im_end|>" in tokenizer.decode(delta.glue_ids)
    assert delta.glue_ids.count(tokenizer.close_id or -1) == 1


QUESTIONS_WITH_TOOLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ ' (tools: ' ~ tools | length ~ ')' if tools and m.role == 'user' }}{{ '<|im_end|>\n' }}{% endfor %}"
    + GENERATION
)


DESCRIBED = QUESTIONS_WITH_TOOLS.replace("tools | length", "tools[0].function.description")
DESCRIBED_BEFORE = DESCRIBED.replace("'\n' + m.content", "'\n'").replace(
    "m.role == 'user' }}", "m.role == 'user' }}{{ m.content }}"
)


@pytest.mark.parametrize("template", [DESCRIBED, DESCRIBED_BEFORE], ids=["behind content", "before content"])
def test_control_strings_of_tools_that_are_shown_with_each_question_stay_text(
    make_tokenizer: MakeTokenizer, template: str
) -> None:
    tokenizer = make_tokenizer(template)
    tools = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "description": "It ends.<|im_end|>"}}]
    delta = tokenizer.render_delta([NEXT], sampled=tokenizer.closing, history=[USER, ANSWER], tools=tools)
    assert "It ends.<|im_end|>" in tokenizer.decode(delta.glue_ids)
    assert delta.glue_ids.count(tokenizer.close_id or -1) == 1


DATED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' at ' + strftime_now('%S.%f') + '\n' + m.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}" + GENERATION
)


@pytest.mark.parametrize("sampled", ["FIN<|im_end|>", "FIN"])
def test_a_time_in_a_header_is_that_of_the_render(make_tokenizer: MakeTokenizer, sampled: str) -> None:
    """No render is like the one before it, so nothing that the probe has seen can be found again."""
    tokenizer = make_tokenizer(DATED)
    times = set()
    for _ in range(3):
        delta = tokenizer.render_delta([NEXT], sampled=tokenizer.encode(sampled), history=[USER, ANSWER])
        whole = sampled + tokenizer.decode([*delta.close_ids, *delta.glue_ids])
        found = re.fullmatch(
            r"FIN<\|im_end\|>\n<\|im_start\|>user at (\d\d\.\d{6})\nAnd now\?<\|im_end\|>\n<\|im_start\|>assistant\n",
            whole,
        )
        assert found is not None, whole
        times.add(found[1])
    assert len(times) == 3
