"""Tools are found in a prompt's text in whatever form; where that can't be told, nothing is said."""

from typing import Any

import pytest
from tests.support.tiny_tokenizers import MakeTokenizer
from tests.tokenizers.real import REAL_NAMES, real_tokenizer

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.shown_tools import find_shown_tools

QUESTION = [{"role": "user", "content": "Calculate 15 + 23. Do not add in your head."}]


def tool(name: str, description: str = "") -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


ADD = tool("add", 'Adds two "numbers" <a> & b\nas you \u00e4sk')
SEARCH = tool("search", "Looks something up")
BARE = tool("bare")
TOOLS = [ADD, SEARCH, BARE]


@pytest.mark.parametrize("shown", [[], [ADD], [SEARCH, ADD], [BARE], TOOLS])
def test_shown_are_those_that_were_rendered(tiny: ChatTokenizer, shown: list[dict[str, Any]]) -> None:
    ids = tiny.render_prompt(QUESTION, tools=shown or None)
    assert find_shown_tools(tiny, ids, TOOLS) == {each["function"]["name"]: each in shown for each in TOOLS}


XML = (
    "{% for t in tools %}<tool><n>{{ t.function.name }}</n> {{ t.function.description }}</tool>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_another_form_is_found_too_and_what_our_render_does_not_show_is_left_out(
    make_tokenizer: MakeTokenizer,
) -> None:
    tokenizer = make_tokenizer(XML)
    ids = tokenizer.render_prompt(QUESTION, tools=[ADD])
    # The name without quotes would be found in any text, so nothing is said of a tool without a description.
    assert find_shown_tools(tokenizer, ids, TOOLS) == {"add": True, "search": False}
    names_only = make_tokenizer(XML.replace("{{ t.function.description }}", ""))
    assert find_shown_tools(names_only, names_only.render_prompt(QUESTION, tools=[ADD]), TOOLS) == {}


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", REAL_NAMES)
def test_with_real_templates_nothing_wrong_is_said(name: str) -> None:
    tokenizer = real_tokenizer(name)
    described = [ADD, SEARCH]
    # A template that wants tools in a form of its own renders none of ours.
    for shown in ([], [ADD], described) if tokenizer.renders_tools else ([],):
        found = find_shown_tools(tokenizer, tokenizer.render_prompt(QUESTION, tools=shown or None), described)
        names = {each["function"]["name"] for each in shown}
        assert all(is_shown == (each in names) for each, is_shown in found.items())
    if tokenizer.renders_tools:
        assert found == {"add": True, "search": True}
