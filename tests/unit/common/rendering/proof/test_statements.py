"""Templates that were written to fool a proof: each of them depends on what is hidden behind some construct.

None may be proved. `is false` on a joined value was once taken as decided; seven more places were found by reading.
"""

import pytest
from tests.unit.common.rendering.proof.test_prover import CALLS, END, TOOL, proof_of

from rolloutpool_common.rendering.proof.claims import Source

LOOP = "{% for m in messages %}{{ m.content }};{% endfor %}"
FOOLS = {
    "joined boolean is false": "{% set ns = namespace(a=true) %}{% for m in messages %}{% if m.content == 'x' %}"
    "{% set ns.a = false %}{% endif %}{{ m.content }}{% if ns.a is false %}!{% endif %}{% endfor %}",
    "joined boolean is true": "{% set ns = namespace(a=false) %}{% for m in messages %}{% if m.content == 'x' %}"
    "{% set ns.a = true %}{% endif %}{{ m.content }}{% if ns.a is true %}!{% endif %}{% endfor %}",
    "joined value is none": "{% set ns = namespace(a=none) %}{% for m in messages %}{% if m.content == 'x' %}"
    "{% set ns.a = 1 %}{% endif %}{{ m.content }}{% if ns.a is none %}!{% endif %}{% endfor %}",
    "joined value is defined": "{% set ns = namespace() %}{% for m in messages %}{% if m.content == 'x' %}"
    "{% set ns.a = 1 %}{% endif %}{{ m.content }}{% if ns.a is defined %}!{% endif %}{% endfor %}",
    # Found by random templates: what was printed was this analysis' own value.
    "a joined value in JSON": "{% set ns = namespace(v=1) %}{% for m in messages %}{% if m.content == 'x' %}"
    "{% set ns.v = m.content %}{% endif %}{{ m.content }}{{ ('a' ~ ns.v) | tojson }}{% endfor %}",
    "macro changes a namespace": "{% set ns = namespace(n=0) %}{% macro f(m) %}{% set ns.n = ns.n + 1 %}{% endmacro %}"
    "{% for m in messages %}{{ f(m) }}{{ m.content }}{{ ns.n }}{% endfor %}",
    "macro changes a namespace in a conditional value": "{% set ns = namespace(n=0) %}"
    "{% macro f() %}{% set ns.n = 1 %}{% endmacro %}"
    + LOOP
    + "{% set q = f() if messages[0].content == 'x' else '' %}{{ ns.n }}",
    "macro changes a namespace behind and": "{% set ns = namespace(n=0) %}"
    "{% macro f() %}{% set ns.n = 1 %}{% endmacro %}"
    + LOOP
    + "{% set q = messages[0].content == 'x' and f() %}{{ ns.n }}",
    "macro changes its argument": "{% set ns = namespace(n='') %}{% macro f(s, m) %}{% set s.n = m.content %}"
    "{% endmacro %}"
    "{{ f(ns, messages[0]) }}" + LOOP + "{{ ns.n }}",
    "macro reads what is set later": "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}"
    "{% set x = messages[0].content %}" + LOOP + "{{ f() }}",
    "macro gets a local namespace in one arm": "{% set ns = namespace(n=0) %}{% macro f(m) %}{% if m.content == 'x' %}"
    "{% set ns = namespace(n=1) %}{% endif %}{% set ns.n = 7 %}{% endmacro %}{% for m in messages %}{{ f(m) }}"
    "{{ m.content }}{{ ns.n }}{% endfor %}",
    "recursion": "{% macro f(i) %}{% if i < messages | length %}{{ messages[i].role[0] }}{{ f(i + 1) }}"
    "{% endif %}{% endmacro %}" + LOOP + "{{ f(0) }}",
    "changed": "{% for m in messages %}{{ m.content }}{{ loop.changed(m.role) }}{% endfor %}",
    "previous item": "{% for m in messages %}{{ m.content }}{% if loop.index0 == 1 and loop.previtem.content == 'x' %}!"
    "{% endif %}{% endfor %}",
    "next item": LOOP + "{% for m in messages %}{% if loop.first %}{{ loop.nextitem.role }}{% endif %}{% endfor %}",
    "break": "{% set ns = namespace(a=0) %}{% for m in messages %}{% if m.content == 'x' %}{% break %}{% endif %}"
    "{% set ns.a = ns.a + 1 %}{% endfor %}" + LOOP + "{{ ns.a }}",
    "break at the turn": "{% for m in messages %}{{ m.content }}"
    ";{% if m.role == 'assistant' and messages[0].content == 'x' %}"
    "{% break %}{% endif %}{% endfor %}",
    "continue": "{% for m in messages %}{% if loop.index > 4 %}{{ m.content }}{% continue %}{% endif %}{{ m.content }}."
    "{% endfor %}",
    "set block with a filter": "{% set x | trim %}{{ messages[0].content }}{% endset %}" + LOOP + "{{ x | length }}",
    "sort": LOOP + "{{ (messages | sort(attribute='content') | first).content }}",
    "slice with a computed bound": LOOP + "{{ messages[messages | length - 4:][0].content }}",
    "slice by a name": "{% set n = messages | length - 1 %}"
    + LOOP
    + "{% for m in messages[:n][::-1] %}{{ m.role }}{% endfor %}",
    "negative index of few messages": LOOP + "{{ messages[messages | length - 5].role }}",
    "update": "{% set d = {'a': 1} %}" + LOOP + "{{ d.update({'a': 2}) }}",
    "append in one arm": "{% set l = [] %}{% for m in messages %}{% if m.content == 'x' %}"
    "{% set l = l + [1] %}{{ l | length }}"
    "{% endif %}{{ m.content }}{% endfor %}{% set k = messages | map(attribute='content') | list %}{{ k | length }}",
    "cycler": "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ m.content }}{{ c.next() }}{% endfor %}",
    "joiner": "{% set j = joiner(',') %}{% for m in messages %}{{ m.content }}{{ j() }}{% endfor %}",
    "call block": "{% macro f() %}{{ caller() }}{% endmacro %}"
    + LOOP
    + "{% call f() %}{{ messages[0].content }}{% endcall %}",
    "select": LOOP + "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "select is always true": LOOP + "{{ messages | selectattr('role', 'equalto', 'x') | list | length }}",
    "a generator used twice": "{% set g = ['a', 'b'] | map('upper') %}{% if messages[0].content == 'x' %}"
    "{{ g | list | length }}"
    "{% endif %}" + LOOP + "{{ g | join }}",
    "group by": LOOP + "{% for r, g in messages | groupby('role') %}{{ r }}{% endfor %}",
    "percent": LOOP + "{{ '%s %s' % (messages[0].role, messages | length) }}",
    "tilde": LOOP + "{{ '' ~ (messages | length) }}",
    "alternation": "{% for m in messages %}{{ m.content }}{% if loop.index0 % 2 %}!{% endif %}{% endfor %}",
    "whole message as before": "{% set ns = namespace(p=none, n=0) %}{% for m in messages[:-2] %}{% if ns.p == m %}"
    "{% set ns.n = 1 %}{% endif %}{% set ns.p = m %}{% endfor %}" + LOOP + "{{ ns.n }}",
    "namespace in a namespace": "{% set o = namespace(k=none) %}{% for m in messages %}"
    "{% set i = namespace(v=m.content) %}"
    "{% if loop.first %}{% set o.k = i %}{% endif %}{{ m.content }}{{ o.k.v }}{% endfor %}",
    "loop else": LOOP + "{% for m in messages if m.content == 'x' %}{% else %}none{% endfor %}",
    "loop condition on a known item": LOOP + "{% for z in [messages[0].content] if z == 'x' %}!{% endfor %}",
    "loop condition": LOOP + "{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}",
    "get with a default": LOOP + "{{ messages[0].get('x', 'y') }}",
    "a key that is content": LOOP + "{{ {'x': 'y'}.get(messages[0].content) }}",
    "a key that is content, in brackets": LOOP + "{{ {'x': 'y'}[messages[0].content] }}",
    "a conditional value": LOOP + "{{ 'y' if messages[0].content == 'x' }}",
    "or": LOOP + "{{ messages[0].x or 'y' }}",
    "a namespace read by its key": "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}{{ m.content }}"
    "{{ ns['n'] }}{% endfor %}",
    "a loop kept outside": "{% for m in messages %}{% set o = loop %}{% for c in [1] %}{{ m.content }}"
    "{{ o.index }}{% endfor %}"
    "{% endfor %}",
    "a loop over roles": LOOP + "{% for r in messages | map(attribute='role') %}{{ r }}{% endfor %}",
    "reversed": LOOP + "{% for m in messages | reverse %}{{ m.role }}{% endfor %}",
    "a message printed whole": LOOP + "{{ messages[0] }}",
    "all messages in JSON": LOOP + "{{ messages | tojson | length }}",
    "a sum": LOOP + "{{ messages | map(attribute='content') | map('length') | sum }}",
    "unique": LOOP + "{{ messages | map(attribute='role') | unique | list | length }}",
    "batch": LOOP + "{% for b in messages | batch(2) %}.{% endfor %}",
    "a dict of the loop": "{% set ns = namespace(d={}) %}{% for m in messages %}"
    "{% set ns.d = dict(ns.d, r=m.role, n=loop.index) %}"
    "{{ m.content }}{{ ns.d.n }}{% endfor %}",
}


@pytest.mark.parametrize("name", FOOLS)
def test_no_template_that_reads_history_is_proved(name: str) -> None:
    proof = proof_of(FOOLS[name])

    assert proof.parts is None
    assert not proof.independent
    assert proof.reasons


WORDS = {
    "markup escapes what it is added to": LOOP.replace("m.content }}", "(m.content | safe) + '<b>' }}"),
    "escaped": LOOP.replace("m.content", "m.content | e"),
    "a message printed whole": LOOP + "{{ messages[-1] }}",
    "keys of a message": LOOP + "{% for k in messages[-1] %}{{ k }}{% endfor %}",
    "items of a message": LOOP + "{% for k, v in messages[-1].items() %}{{ k }}{% endfor %}",
    "a message in JSON": LOOP + "{{ messages[-1] | tojson }}",
    "a range printed": LOOP + "{{ range(3) }}",
    "two words across a border": LOOP + "{% if 'ab' in 'a' ~ messages[-1].content %}!{% endif %}",
    "no end of a slice": LOOP + "{{ ('a' ~ messages[-1].content)[:0] }}",
    "first letter": LOOP.replace("m.content", "m.content[0]"),
    "a word in another": LOOP + "{% if messages[-1].content in 'abc' %}!{% endif %}",
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_are_not_plainly_printed_are_no_parts(name: str) -> None:
    assert proof_of(WORDS[name]).parts is None


def test_an_index_that_may_be_negative_may_be_of_any_message() -> None:
    # With one message before the turn, the index is -1, and that is the last of the new ones.
    assert proof_of(LOOP + "{{ messages[messages | length - 4].role }}").reads == set(Source)


def test_scopes_are_those_of_jinja() -> None:
    # What is set in a loop is gone behind it.
    source = "{% set x = 'a' %}{% for m in messages %}{% set x = x ~ m.content %}{{ m.content }};{% endfor %}{{ x }}"
    parts = proof_of(source).parts
    assert parts is not None
    assert parts[-1] == ";a"


def test_a_default_of_a_macro_may_read_its_other_arguments() -> None:
    source = "{% macro f(a, b=a) %}{{ b }}{% endmacro %}" + LOOP + "{{ f('x') }}"
    parts = proof_of(source).parts
    assert parts is not None
    assert parts[-1] == ";x"


def test_a_generator_is_true_though_it_is_empty() -> None:
    parts = proof_of(LOOP + "{{ 'yes' if [] | map('upper') }}").parts
    assert parts is not None
    assert parts[-1] == ";yes"


def test_a_recursive_loop_is_not_understood() -> None:
    proof = proof_of("{% for m in messages recursive %}{{ m.content }}{% endfor %}")
    assert "a recursive loop" in proof.reasons[0].construct


def test_a_lookup_of_the_calls_name_is_the_turns_word() -> None:
    source = (
        "{% for m in messages %}" + CALLS + "{% if m.role == 'tool' %}{% for p in messages %}"
        "{% for c in p.tool_calls or [] %}{% if c.id == m.tool_call_id %}{{ c.function.name }}{% endif %}{% endfor %}"
        "{% endfor %}{{ m.content }}{% endif %}{% endfor %}" + END
    )
    proof = proof_of(source, TOOL)
    assert proof.parts is None
    assert {Source.TURN, Source.EARLIER} <= proof.reads
