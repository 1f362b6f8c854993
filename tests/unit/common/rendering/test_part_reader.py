"""Whether a template reads parts, decided from its source: what it does with a list, for each role by itself."""

import pytest
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.rendering.part_reader import reads_parts

ROLES = ("system", "user", "assistant", "tool")
EACH = "{% for m in messages %}@@{% endfor %}"
MACRO = "{% macro shown(content) %}{% if content is string %}{{ content }}{% else %}{% for p in content %}{{ p.text }}"
MACRO += "{% endfor %}{% endif %}{% endmacro %}"

READING = {
    "a loop": EACH.replace("@@", "{% for p in m.content %}{{ p.text }}{% endfor %}"),
    "a loop behind a test": EACH.replace(
        "@@",
        "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}{% endfor %}{% endif %}",
    ),
    "a name": EACH.replace("@@", "{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}"),
    "the first part": EACH.replace("@@", "{{ m.content[0].text }}"),
    "the first part by its key": EACH.replace("@@", "{{ m.content[0]['text'] }}"),
    "the first part by a filter": EACH.replace("@@", "{{ (m.content | first).text }}"),
    "a part of a slice": EACH.replace("@@", "{% for p in m.content[1:] %}{{ p.text }}{% endfor %}"),
    "get": EACH.replace("@@", "{% for p in m.get('content') %}{{ p.text }}{% endfor %}"),
    "map": EACH.replace("@@", "{{ m.content | map(attribute='text') | join }}"),
    "selectattr": EACH.replace("@@", "{{ m.content | selectattr('type', 'equalto', 'text') | list }}"),
    "join by a key": EACH.replace("@@", "{{ m.content | join('', attribute='text') }}"),
    "a default": EACH.replace("@@", "{% for p in m.content | default([]) %}{{ p.text }}{% endfor %}"),
    "a macro": MACRO + EACH.replace("@@", "{{ shown(m.content) }}"),
    "a macro of messages": MACRO
    + "{% macro all(m) %}{{ shown(content=m.content) }}{% endmacro %}"
    + EACH.replace("@@", "{{ all(m) }}"),
    "a namespace": "{% set ns = namespace(c='') %}"
    + EACH.replace("@@", "{% set ns.c = m.content %}")
    + "{% for p in ns.c %}{{ p.text }}{% endfor %}",
    "other messages": "{% set messages = messages[1:] | list %}"
    + EACH.replace("@@", "{% for p in m.content %}{% endfor %}"),
    "the message before": EACH.replace("@@", "{% for p in loop.previtem.content %}{{ p.text }}{% endfor %}"),
    "a choice": EACH.replace("@@", "{% for p in (m.content if tools else [m.content]) %}{{ p }}{% endfor %}"),
    "a block": EACH.replace("@@", "{% set b %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endset %}{{ b }}"),
    "generation": EACH.replace(
        "@@", "{% generation %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endgeneration %}"
    ),
}
TAKING_STRINGS = {
    "plain": EACH.replace("@@", "{{ m.content }}"),
    "filters": EACH.replace("@@", "{{ m.content | trim | upper }}{{ m.content | tojson }}{{ m.content[:9] }}"),
    "a test alone": EACH.replace("@@", "{{ m.content if m.content is string else '' }}"),
    "JSON of what is iterable": EACH.replace(
        "@@", "{% if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}{% endif %}"
    ),
    "letters of a string": EACH.replace(
        "@@", "{% if m.content is string %}{% for letter in m.content %}{{ letter }}{% endfor %}{% endif %}"
    ),
    "keys of a mapping": EACH.replace(
        "@@", "{% if m.content is mapping %}{% for k in m.content %}{{ k }}{% endfor %}{% endif %}"
    ),
    "calls": EACH.replace("@@", "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{{ m.content }}"),
    "tools": "{% for t in tools %}{{ t.function.name }}{% endfor %}" + EACH.replace("@@", "{{ m.content }}"),
    "a macro that nobody calls": MACRO + EACH.replace("@@", "{{ m.content }}"),
    "a split text": EACH.replace("@@", "{% for line in m.content.split('x') %}{{ line }}{% endfor %}"),
    "no template": "{% if %}",
}


@pytest.mark.parametrize("name", READING)
def test_templates_that_go_through_parts(name: str) -> None:
    assert reads_parts(READING[name], "user")


@pytest.mark.parametrize("name", TAKING_STRINGS)
def test_templates_that_take_strings(name: str) -> None:
    assert not reads_parts(TAKING_STRINGS[name], "user")


LOOP = "{% for p in m.content %}{{ p.text }}{% endfor %}"
BY_ROLE = {
    "{% if m.role == 'user' %}@@{% else %}{{ m.content }}{% endif %}": {"user"},
    "{% if m['role'] != 'user' %}@@{% endif %}": {"system", "assistant", "tool"},
    "{% if 'user' == m.role %}@@{% elif m.role == 'tool' %}{{ m.content }}{% else %}@@{% endif %}": {
        "system",
        "user",
        "assistant",
    },
    "{% if m.role in ['tool', 'system'] %}@@{% endif %}": {"system", "tool"},
    "{% if m.role not in ('tool', 'system') and tools %}@@{% endif %}": {"user", "assistant"},
    "{% set role = m.role | lower %}{% if not role == 'tool' %}@@{% endif %}": {"system", "user", "assistant"},
    "{% if m.role == 'user' or tools %}@@{% endif %}": set(ROLES),
    "{{ m.content }}": set(),
}


@pytest.mark.parametrize("body", BY_ROLE)
def test_each_role_by_itself(body: str) -> None:
    source = EACH.replace("@@", body.replace("@@", LOOP))
    assert {role for role in ROLES if reads_parts(source, role)} == BY_ROLE[body]


def test_a_message_that_is_picked_out() -> None:
    source = "{% if messages[0].role == 'system' %}{{ messages[0].content[0].text }}{% endif %}"
    assert {role for role in ROLES if reads_parts(source, role)} == {"system"}


REAL = {
    "gemma3": set(ROLES),
    "llama3_2": set(),
    "qwen2_5": set(),
    "qwen3": set(),
    "deepseek_v3": set(),
    "template:qwen3_vl": set(ROLES),
    "template:glm4moe": set(ROLES),
    "template:gptoss": set(),
    "template:phi3_5": set(),
}


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", REAL)
def test_templates_of_strangers(name: str) -> None:
    source = real_tokenizer(name).reference.chat_template
    assert isinstance(source, str)
    assert {role for role in ROLES if reads_parts(source, role)} == REAL[name]


def test_a_macro_that_calls_itself_ends() -> None:
    source = "{% macro f(c) %}{{ f([c]) }}{{ f(c) }}{% endmacro %}" + EACH.replace("@@", "{{ f(m.content) }}")
    assert not reads_parts(source, "user")
