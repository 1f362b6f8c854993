"""Random templates that read history in random ways, to hold proofs against: each is a function of its seed."""

from random import Random

from tests.property.proofs import Subject

_LITERALS = ("'x'", "'user'", "'tool'", "'</think>'", "''", "'a'", "' '", "'assistant'")
_MESSAGE = (
    "m",
    "messages[0]",
    "messages[-1]",
    "messages[-2]",
    "messages[1]",
    "messages[loop.index0]",
    "messages[loop.index0 - 1]",
    "messages[loop.index0 + 1]",
    "(messages | last)",
    "(messages | first)",
    "messages[1:][0]",
    "messages[:-1][-1]",
    "messages[::-1][0]",
    "(loop.previtem or m)",
    "(loop.nextitem or m)",
    "messages[ns.n]",
    "ns.m",
    "(messages[ns.n:] or [m])[0]",
)
_TEXTS = (
    "{m}.content",
    "{m}.role",
    "{m}['content']",
    "{m}.get('content', 'none')",
    "{m}.name",
    "ns.t",
    "x",
    "y",
    "'lit'",
    "({t} | trim)",
    "({t} ~ {t})",
    "({t} + {t})",
    "{t}.split({l})[-1]",
    "({t} | string).split('x')[0]",
    "({t} | upper)",
    "{t}.replace('x', 'zz')",
    "({t} if {c} else {t})",
    "({t} or {t})",
    "({t} and {t})",
    "[{t}, {t}] | join('-')",
    "{t}[:2]",
    "{t}[1:]",
    "{t}[-1:]",
    "('%s|%s' % ({t}, {n}))",
    "({t} | default('d'))",
    "({t} | length | string)",
    "f({t})",
    "g({t}, {n})",
    "({n} ~ '')",
    "({t} | tojson)",
    "('{{}}'.format({t}))",
    "({t} | lower | capitalize)",
    "{t}.strip('ax')",
    "({t} | safe)",
    "({t} | e)",
    "{t}.lstrip()",
    "(messages | map(attribute='role') | join)",
    "{t}.partition('x')[2]",
    "{t}.rsplit('x', 1) | last",
)
_NUMBERS = (
    "loop.index",
    "loop.index0",
    "loop.revindex",
    "messages | length",
    "ns.n",
    "1",
    "2",
    "({n} + 1)",
    "({n} - {n})",
    "({n} % 3)",
    "({t} | length)",
    "{t}.find('x')",
    "(messages | selectattr('role', 'equalto', {l}) | list | length)",
    "{t}.count('x')",
    "(messages[1:] | length)",
    "([{t}, {t}] | length)",
    "({n} if {c} else {n})",
    "(messages | map(attribute='content') | list | length)",
)
_CONDITIONS = (
    "loop.first",
    "loop.last",
    "{t} == {t}",
    "{t} == {l}",
    "{l} in {t}",
    "{l} not in {t}",
    "{n} > {n}",
    "{n} == {n}",
    "{n} <= 2",
    "{t}.startswith({l})",
    "{t}.endswith('x')",
    "{c} and {c}",
    "{c} or {c}",
    "not {c}",
    "({c}) is false",
    "({c}) is true",
    "ns.b",
    "ns.b is false",
    "ns.b is none",
    "{m}.name is defined",
    "{m}.tool_calls",
    "{m}.content is string",
    "{m} == {m}",
    "{t}",
    "{t} is none",
    "{t} in [{l}, {t}]",
    "loop.previtem is defined",
    "loop.nextitem is undefined",
    "m.role == 'user'",
    "m.role == 'assistant'",
    "m.role != {l}",
    "{t} is in ['x', 'a']",
    "tools",
    "ns.t is defined",
    "({t}) is string",
    "({n}) is odd",
    "{t} is lower",
    "({n}) is number",
    "{t} < {t}",
)
_STATEMENTS = (
    "{{{{ {t} }}}}",
    "{{{{ {t} }}}}",
    "{{% if {c} %}}{s}{{% endif %}}",
    "{{% if {c} %}}{s}{{% else %}}{s}{{% endif %}}",
    "{{% if {c} %}}{s}{{% elif {c} %}}{s}{{% endif %}}",
    "{{% set ns.t = {t} %}}",
    "{{% set ns.n = {n} %}}",
    "{{% set ns.b = {c} %}}",
    "{{% set x = {t} %}}",
    "{{% set y %}}{s}{{% endset %}}",
    "{{% set ns.n = ns.n + 1 %}}",
    "{{% set ns.t = ns.t ~ {t} %}}",
    "{{% set ns.m = {m} %}}",
    "{{% if {c} %}}{{% break %}}{{% endif %}}",
    "{{% if {c} %}}{{% continue %}}{{% endif %}}",
    "{{% for z in messages %}}{{% if {c} %}}{s}{{% endif %}}{{% endfor %}}",
    "{{% for z in ['a', {t}] %}}{{{{ z }}}}{s}{{% endfor %}}",
    "{{% for z in messages if z.content == {l} %}}{{{{ loop.index }}}}{{% endfor %}}",
    "{{{{ h({t}) }}}}",
    "{{% for i in range(messages | length) %}}{{% if messages[i].role == {l} %}}{{% set ns.n = i %}}"
    "{{% endif %}}{{% endfor %}}",
    "{{% filter trim %}}{s}{{% endfilter %}}",
    "{{% with x = {t} %}}{s}{{% endwith %}}",
    "{{% set y | trim %}}{s}{{% endset %}}",
    "{{% for z in {t}.split('x') %}}{{{{ z | length }}}}{{% endfor %}}",
    "{{% generation %}}{s}{{% endgeneration %}}",
    "{{% for z in messages[1:] %}}{{% if z.role == 'user' %}}{{% set ns.t = z.content %}}{{% endif %}}{{% endfor %}}",
    "{{% for z in messages | reverse %}}{{% if loop.first %}}{{{{ z.role }}}}{{% endif %}}{{% endfor %}}",
)
_KINDS = {"m": _MESSAGE, "t": _TEXTS, "n": _NUMBERS, "c": _CONDITIONS, "s": _STATEMENTS, "l": _LITERALS}
_MACROS = (
    "{% macro f(a) %}[{{ a }}]{% endmacro %}{% macro g(a, b=a) %}{% if b == 2 %}{{ a }}{% else %}{{ b }}"
    "{% endif %}{% endmacro %}"
    "{% macro h(a) %}{% set ns.n = ns.n + 1 %}{% if a == 'x' %}{% set ns.t = a %}{% endif %}{% endmacro %}"
)


def _fill(form: str, random: Random, depth: int) -> str:
    kind = _KINDS[form]
    # Leaves stand first.
    leaves = {"t": 9, "n": 7, "c": 2, "s": 2}.get(form, len(kind))
    pattern = random.choice(kind if depth > 0 else kind[:leaves])
    filled, at = "", 0
    while at < len(pattern):
        if pattern.startswith(("{{", "}}"), at):
            filled, at = filled + pattern[at], at + 2
        elif pattern[at] == "{":
            filled, at = filled + _fill(pattern[at + 1], random, depth - 1), at + 3
        else:
            filled, at = filled + pattern[at], at + 1
    return filled


def made(seed: str) -> Subject:
    """A random template, in which the turn and the new messages are mostly printed."""
    random = Random(seed)
    before = "".join(_fill("s", random, 2) for _ in range(random.randrange(3)))
    inside = "".join(_fill("s", random, 3) for _ in range(random.randrange(4)))
    printed = random.choice(
        ("m.content", "m.content", "m.content | trim", "m.content.split('</think>')[-1]", "x ~ m.content", "y")
    )
    close = "".join(_fill("s", random, random.choice((1, 2, 3))) for _ in range(random.randrange(1, 3)))
    behind = "".join(_fill("s", random, 2) for _ in range(random.randrange(2)))
    # `m` and `loop` stand outside of the loop as well, where they are not defined or fail.
    before, behind = (text.replace("loop.", "messages[0].") for text in (before, behind))
    source = (
        "{% set ns = namespace(n=0, t='', b=false, m=messages[0]) %}{% set x = '' %}{% set y = 'y' %}"
        "{% set m = messages[0] %}"
        f"{_MACROS}{before.replace('{% break %}', '').replace('{% continue %}', '')}"
        f"{{% for m in messages %}}{inside}{{{{ '[' ~ m.role ~ ']' }}}}{{{{ {printed} }}}}{close}{{% endfor %}}"
        f"{behind.replace('{% break %}', '').replace('{% continue %}', '')}{{% if add_generation_prompt %}}"
        f"<a>{{% endif %}}"
    )
    return Subject(f"made:{seed}", source, {})
