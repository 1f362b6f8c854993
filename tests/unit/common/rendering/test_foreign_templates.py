"""Deltas on every template that a package of somebody else's ships, against a full render of the real conversation.

The templates are TRL's, as they are in its wheel, over the tiny tokenizer. The oracle is the template itself: the whole
conversation is rendered with the real last turn, and what stands behind that turn's own last word must be what the
delta says. Where a template does not print the turn's calls there is no such place, and nothing to compare.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tokenizers.layout import JINJA, over_tiny, place

from rolloutpool_common.rendering import ChatTokenizer, TemplateRefused, load_tokenizer
from rolloutpool_common.rendering.template import normalise

Message = dict[str, Any]

NAMES = sorted(path.stem for path in JINJA.glob("*.jinja"))
INSIDE = re.compile("gemma4(_v[345])?|diffusion_gemma")
"""They write results inside the turn, in front of what it says and behind its calls."""
ENDS = re.compile(
    r"<\|im_end\|>|<\|END_OF_TURN_TOKEN\|>|<\|eot_id\|>|<end_of_turn>|<turn\|>|<\|return\|>"
    r"|<\uff5cend▁of▁sentence\uff5c>|<\|end\|>|</s>|<\|eot\|>|<\|endoftext\|>"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "x"}}},
        },
    }
]
USER: Message = {"role": "user", "content": "What is it?"}
NEXT: Message = {"role": "user", "content": "And now?"}
SWITCH: Message = {"role": "user", "content": "hi /no_think"}


def call(number: int) -> Message:
    function = {"name": "add", "arguments": {"a": f"ARG{number}"}}
    return {"id": f"abcdefg{number:02d}", "type": "function", "function": function}


def result(number: int) -> Message:
    return {"role": "tool", "tool_call_id": f"abcdefg{number:02d}", "name": "add", "content": "38"}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calling(*numbers: int, content: str = "") -> Message:
    return {"role": "assistant", "content": content, "tool_calls": [call(number) for number in numbers]}


CONVERSATIONS: dict[str, tuple[list[Message], list[Message]]] = {
    "answer": ([USER, answer("FIN")], [NEXT]),
    "two answers": ([USER, answer("one"), NEXT, answer("FIN")], [USER]),
    "call": ([USER, calling(1)], [result(1)]),
    "call with a word": ([USER, calling(1, content="Let me see.")], [result(1)]),
    "second call": ([USER, calling(0), result(0), calling(1)], [result(1)]),
    "third call": ([USER, calling(0), result(0), calling(2), result(2), calling(1)], [result(1)]),
    "parallel calls": ([USER, calling(0, 1)], [result(0), result(1)]),
    "answer behind a call": ([USER, calling(0), result(0), answer("FIN")], [NEXT]),
    "result and user": ([USER, calling(1)], [result(1), NEXT]),
    "thinking": ([USER, answer("<think>\nhm\n</think>\n\none"), NEXT, answer("FIN")], [USER]),
    "switch": ([SWITCH, answer("FIN")], [USER]),
}
SYSTEMS: list[list[Message]] = [
    [],
    [{"role": "system", "content": "Be kind."}],
    [{"role": "system", "content": "Be kind. /no_think"}],
]


def rendered(tokenizer: ChatTokenizer, messages: list[Message], tools: list[dict[str, Any]] | None) -> str | None:
    """What the template makes of a conversation, with arguments as objects or, where it wants that, as text."""
    for as_text in (False, True):
        given = normalise(messages)
        for message in given if as_text else ():
            for made in message.get("tool_calls", ()):
                made["function"]["arguments"] = json.dumps(made["function"]["arguments"])
        try:
            return tokenizer.render_text(given, tools=tools)
        except TemplateRefused:
            continue
    return None


def cases(source: str) -> Iterator[tuple[str, list[Message], list[Message], list[dict[str, Any]] | None]]:
    # A switch word, or a thought, is text as any other to a template that does not name it.
    switches, thinks = "no_think" in source, "think" in source
    for tools in (None, TOOLS):
        for system in SYSTEMS if switches else SYSTEMS[:2]:
            for name, (history, new) in CONVERSATIONS.items():
                if (switches or name != "switch") and (thinks or name != "thinking"):
                    yield name, [*system, *history], new, tools


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", NAMES)
def test_a_delta_is_what_the_template_writes_behind_the_real_turn(name: str, tmp_path: Path) -> None:
    source = (JINJA / f"{name}.jinja").read_text(encoding="utf-8")
    end = ENDS.search(source)
    place(tmp_path / name, over_tiny(source, end.group() if end else "</s>"))
    tokenizer = load_tokenizer(str(tmp_path / name))
    wrong, seen = [], Counter[str]()
    for label, history, new, tools in cases(source):
        says = "ARG1" if history[-1].get("tool_calls") else "FIN"
        whole = rendered(tokenizer, [*history, *new], tools)
        if whole is None or says not in whole:
            seen["no oracle"] += 1
            continue
        if says == "ARG1" and INSIDE.match(name) and "word" in label:
            seen["no oracle"] += 1
            continue
        behind = whole[whole.rfind(says) + len(says) :]
        try:
            delta = tokenizer.render_delta(new, sampled=tokenizer.encode(says), history=history, tools=tools)
        except TemplateRefused:
            seen["refused"] += 1
            continue
        written = tokenizer.decode([*delta.close_ids, *delta.glue_ids])
        # Behind a call that was cut, what closes the call itself is the policy's to spell.
        exact = behind == written if says == "FIN" else bool(written) and behind.endswith(written)
        seen["exact"] += exact
        if not exact:
            wrong.append((label, bool(tools), written, behind))
    assert not wrong, wrong[0]
    assert seen.total()


def test_templates_are_there_to_be_tried() -> None:
    if not NAMES:
        pytest.skip("run `make tokenizers`")
    assert len(NAMES) > 60
