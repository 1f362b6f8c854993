"""Templates that cut, measure or change texts in which a control string was typed.

What is expected is what transformers alone makes of the messages as they are: `apply_chat_template` without any marks,
and `tokenizers`, where the typed string is encoded by a copy without added tokens. `<|endoftext|>` is typed, because no
template here writes it. So each one in the text was typed.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.property.families import GENERATION
from tests.support.tiny_tokenizers import MakeTokenizer, write_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rolloutpool_common.rendering import ChatTokenizer, ContentUnsafe, RenderFailed, TypedTextChanged, load_tokenizer
from rolloutpool_common.rendering.control_tokens import ControlTokenEscaper, marked_strings
from rolloutpool_common.rendering.template import Template

Message = dict[str, Any]

TYPED = "<|endoftext|>"
USER: Message = {"role": "user", "content": "What is it?"}
ANSWER: Message = {"role": "assistant", "content": "FIN"}
CALLING: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"a": "FIN"}}}],
}


def writing(content: str, header: str = "") -> str:
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role }}" + header + "{{ '\n' }}"
        "{{ " + content + " if m.role != 'assistant' else m.content }}"
        "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}" + GENERATION
    )


TEMPLATES = {
    "plain": writing("m.content"),
    "sliced": writing("m.content[:100]"),
    "truncated": writing("m.content | truncate(100)"),
    "measured": writing("m.content", "{{ ' (' ~ m.content | length ~ ')' if m.role != 'assistant' }}"),
    "long or short": writing("m.content", "{{ ' long' if m.content | length > 60 and m.role != 'assistant' }}"),
    "loud": writing("m.content | upper"),
    "compared": writing("('Stop.' if m.content == '" + TYPED[:4] + "' ~ '" + TYPED[4:] + "' else m.content)"),
    "wrapped": writing("m.content | wordwrap(80, false)"),
    "split into words": writing("m.content.split() | join(' ')"),
    "words counted": writing("m.content", "{{ ' ' ~ m.content.split() | length }}"),
    "trimmed": writing("m.content | trim"),
    "quoted": writing("m.content | tojson"),
    "each letter": writing("m.content | list | join"),
}
TEXTS = {
    "short": f"a {TYPED} b",
    "alone": TYPED,
    "long": f"{TYPED} " + "word " * 40,
    "near the cut": "word " * 16 + TYPED + " word" * 20,
    "many": f"{TYPED} x " * 5,
    "lines": f" a\n{TYPED}\n\nb ",
}
REFUSED = {
    "sliced": {"long", "near the cut", "many"},
    "truncated": {"long", "near the cut", "many"},
    "measured": set(TEXTS),
    "long or short": {"short", "alone", "lines"},
    "loud": set(TEXTS),
    "compared": {"alone"},
    "wrapped": {"long", "near the cut", "many"},
}
"""All others are exact, because marks change nothing there."""


class Judge:
    """Transformers alone."""

    def __init__(self, directory: Path) -> None:
        source = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        self._whole = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._bare = Tokenizer.from_str(json.dumps({**source, "added_tokens": [], "post_processor": None}))
        self._chat: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(directory)

    def text(self, messages: Sequence[Message], tools: list[Any] | None = None) -> str:
        rendered = self._chat.apply_chat_template(
            list(messages), tools=tools, add_generation_prompt=True, tokenize=False
        )
        return str(rendered)

    def ids(self, text: str) -> list[int]:
        found: list[int] = []
        for i, piece in enumerate(text.split(TYPED)):
            found += self._bare.encode(TYPED, add_special_tokens=False).ids if i else []
            found += self._whole.encode(piece, add_special_tokens=False).ids
        return found


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ChatTokenizer, Judge]]:
    found = {}
    for name, template in TEMPLATES.items():
        directory = tmp_path_factory.mktemp("marked")
        write_tokenizer(directory, template)
        found[name] = load_tokenizer(str(directory)), Judge(directory)
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_what_transformers_writes_or_refused(
    loaded: dict[str, tuple[ChatTokenizer, Judge]], name: str
) -> None:
    tokenizer, judge = loaded[name]
    refused = set()
    for case, text in TEXTS.items():
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": text}]
        expected = judge.ids(judge.text(messages))
        try:
            assert tokenizer.render_prompt(messages) == expected, case
        except TypedTextChanged:
            refused.add(case)
    assert refused == REFUSED.get(name, set())


@pytest.mark.parametrize("turn", [ANSWER, CALLING], ids=["question", "result"])
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "loud"])
def test_a_delta_is_what_transformers_writes_or_refused(
    loaded: dict[str, tuple[ChatTokenizer, Judge]], name: str, turn: Message
) -> None:
    tokenizer, judge = loaded[name]
    end = "FIN<|im_end|>" if turn is ANSWER else '"FIN"}]<|im_end|>'
    refused = set()
    for case, text in TEXTS.items():
        new = {"role": "user", "content": text}
        if turn is CALLING:
            new |= {"role": "tool", "name": "f", "tool_call_id": "call00000"}
        expected = judge.ids(judge.text([USER, turn, new]).partition(end)[2])
        try:
            delta = tokenizer.render_delta([new], sampled=tokenizer.encode("FIN<|im_end|>"), history=[USER, turn])
            assert [*delta.close_ids, *delta.glue_ids] == expected, case
        except TypedTextChanged:
            refused.add(case)
    assert refused == REFUSED.get(name, set())


def prompt(tokenizer: ChatTokenizer, content: str) -> str:
    return tokenizer.decode(tokenizer.render_prompt([{"role": "user", "content": content}]))


def test_a_refusal_says_which_strings_and_what_to_do(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(TEMPLATES["sliced"])
    secret = "A secret of theirs."
    with pytest.raises(
        TypedTextChanged, match=r"cuts, measures .*\(`<\|endoftext\|>`, `<\|im_start\|>`\).*Take these out"
    ) as refused:
        prompt(tokenizer, f"{TYPED} <|im_start|> {TYPED} {secret * 9}")
    assert "secret" not in refused.value.message


def test_a_template_that_raises_because_of_marks_is_no_error_of_its_own(make_tokenizer: MakeTokenizer) -> None:
    raising = "(m.content if m.content | length < {} else raise_exception('too long'))"
    with pytest.raises(TypedTextChanged):
        prompt(make_tokenizer(writing(raising.format(40))), f"a {TYPED}")
    # It refuses what was typed with marks or without.
    with pytest.raises(RenderFailed, match="too long"):
        prompt(make_tokenizer(writing(raising.format(10))), f"a {TYPED}")


def test_what_was_typed_into_tools_is_proved(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{{ tools[0].function.description[:40] }}" + TEMPLATES["plain"])

    def ids(description: str) -> list[int]:
        tool = {"type": "function", "function": {"name": "f", "description": description, "parameters": {}}}
        return tokenizer.render_prompt([USER], tools=[tool])

    with pytest.raises(TypedTextChanged):
        ids(f"{TYPED} " + "word " * 9)
    assert tokenizer.decode(ids("word " * 9)).startswith("word word")


def test_a_finished_conversation_is_proved_with_what_its_assistant_said(make_tokenizer: MakeTokenizer) -> None:
    """Control strings that are special are marked in answers and calls too, because these come as text here."""
    template = "{% for m in messages %}{{ '<|im_start|>' + m.content[:40] + '<|im_end|>' }}{% endfor %}"
    tokenizer = make_tokenizer(template)
    for said, others in ((f"{TYPED} " + "word " * 9, "x"), ("word " * 9, f"{TYPED} " + "word " * 9)):
        messages = [{"role": "user", "content": others}, {"role": "assistant", "content": said}]
        with pytest.raises(TypedTextChanged):
            tokenizer.render_conversation(messages)
    ended = tokenizer.render_conversation([USER, {"role": "assistant", "content": "word " * 9}])
    assert ended.text.endswith("word <|im_end|>")


def test_a_system_message_that_is_repeated_is_proved(make_tokenizer: MakeTokenizer) -> None:
    template = (
        "{% set first = messages[0].content[:80] if messages[0].role == 'system' else '' %}"
        "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ first + '\n' if first and m.role == 'user' else '' }}{{ m.content }}{{ '<|im_end|>\n' }}{% endfor %}"
        + GENERATION
    )
    tokenizer = make_tokenizer(template)

    def delta(said: str) -> str:
        history = [{"role": "system", "content": said}, USER, ANSWER]
        return tokenizer.decode(tokenizer.render_delta([USER], sampled=tokenizer.closing, history=history).glue_ids)

    with pytest.raises(TypedTextChanged):
        delta(f"{TYPED} " + "word " * 20)
    assert TYPED in delta(f"{TYPED} x")
    assert "word word" in delta("word " * 20)


MEASURES_NAMES = writing("(m.name | length ~ m.content if m.role == 'tool' else m.content)")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [("f" + TYPED, "38", ContentUnsafe), ("f" + TYPED, TYPED, TypedTextChanged), ("f", TYPED, None)],
)
def test_a_name_that_was_sampled_is_not_what_somebody_typed(
    make_tokenizer: MakeTokenizer, name: str, content: str, error: type[ContentUnsafe] | None
) -> None:
    tokenizer = make_tokenizer(MEASURES_NAMES)
    call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": {}}}
    history = [USER, {**CALLING, "tool_calls": [call]}]
    result = {"role": "tool", "name": name, "tool_call_id": "call00000", "content": content}
    if error is None:
        assert tokenizer.render_delta([result], sampled=tokenizer.closing, history=history).glue_ids
        return
    with pytest.raises(ContentUnsafe) as refused:
        tokenizer.render_delta([result], sampled=tokenizer.closing, history=history)
    assert type(refused.value) is error


TIMED = writing("m.content", "{{ ' at ' + strftime_now('%S.%f') }}")


def test_a_time_in_a_header_is_no_change(make_tokenizer: MakeTokenizer) -> None:
    """No two renders are made in the same microsecond, unless the clock is held."""
    tokenizer = make_tokenizer(TIMED)
    times = [re.findall(r"at (\d\d\.\d{6})", prompt(tokenizer, f"a {TYPED} b")) for _ in range(3)]
    assert len({time for (time,) in times}) == 3
    delta = tokenizer.render_delta(
        [{"role": "user", "content": TYPED}], sampled=tokenizer.closing, history=[USER, ANSWER]
    )
    assert TYPED in tokenizer.decode(delta.glue_ids)


@pytest.mark.parametrize(("content", "renders"), [("no control string", 1), (f"a {TYPED} b", 2), ("ends with <", 2)])
def test_only_what_holds_a_control_string_is_rendered_twice(
    make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch, content: str, renders: int
) -> None:
    tokenizer = make_tokenizer(TEMPLATES["plain"])
    made: list[object] = []
    render = Template.render

    def counted(template: Template, messages: Sequence[Message], **options: Any) -> str:
        made.append(messages)
        return render(template, messages, **options)

    monkeypatch.setattr(Template, "render", counted)
    prompt(tokenizer, content)
    assert len(made) == renders


def test_an_edge_that_adds_up_is_proved(make_tokenizer: MakeTokenizer) -> None:
    """`<|im_` was typed, and `end|>` is written, so the fragment is marked. The template measures it, too."""
    adding = "m.content + 'end|>'"
    plain = make_tokenizer(writing(adding))
    assert plain.render_prompt([{"role": "user", "content": "a <|im_"}]).count(plain.close_id or -1) == 1
    measuring = make_tokenizer(writing(f"{adding} ~ m.content | length"))
    with pytest.raises(TypedTextChanged):
        prompt(measuring, "a <|im_")
    assert "end|>3" in prompt(measuring, "a b")


def test_what_is_marked_is_found_wherever_it_stands() -> None:
    marked = ControlTokenEscaper(["<|end|>"], []).value("a <|end|>")
    for value, found in (
        (marked, True),
        ({"a": [1, None, marked]}, True),
        ({marked: 1}, True),
        (["plain", {"a": "<|end|>"}], False),
        (None, False),
    ):
        assert bool(marked_strings(value)) is found
