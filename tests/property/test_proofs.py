"""A small slice of `tests.property.proofs`, and proofs of templates that got one dependence more."""

import re
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from tests.property.made_templates import made
from tests.property.proofs import FalseProof, Subject, Tally, compare, examine, proof_of, shapes, subjects
from tests.support.turn_shapes import QUESTION

from rolloutpool_common.rendering.proof.claims import Source
from rolloutpool_common.rendering.transformers_compat import template_environment

HEADER = re.compile(r"\{%-?\s*for (\w+) in (?:loop_)?messages\s*-?%\}")

BEHIND = (
    "{{ messages | length }}",
    "{% if messages | length > 5 %}!{% endif %}",
    "{{ messages[0].content }}",
    "{{ messages[-3].role }}",
    "{{ (messages | map(attribute='content') | first) == 'x' }}",
    "{% set zz = namespace(n=0) %}{% for z in messages %}{% set zz.n = zz.n + 1 %}{% endfor %}{{ zz.n }}",
    "{% set zz = namespace(on=false) %}{% for z in messages %}{% if z.content == 'on' %}{% set zz.on = true %}"
    "{% endif %}"
    "{% endfor %}{{ '!' if zz.on is true }}",
    "{% set zz = namespace(u='') %}{% for z in messages %}{% if z.role == 'user' and not zz.u %}"
    "{% set zz.u = z.content %}"
    "{% endif %}{% endfor %}{{ zz.u }}",
    "{{ messages | selectattr('role', 'equalto', 'tool') | list | length }}",
    "{% for z in messages %}{% if z.role == 'tool' %}!{% break %}{% endif %}{% endfor %}",
)
"""Appended to a template: they read earlier messages or count them."""
INSIDE = (
    "{% if loop.index > 6 %}!{% endif %}",
    "{% if not loop.index0 % 7 %}!{% endif %}",
    "{% if loop.previtem is defined and loop.previtem.role == 'assistant' and messages[0].content == 'x' %}"
    "!{% endif %}",
    "{% if loop.length > 9 %}!{% endif %}",
)
"""Put at the beginning of the loop over messages."""
OWN = (
    "{% for z in messages %}{% if z.role == 'assistant' and z.content.endswith('.') %}!{% endif %}{% endfor %}",
    "{% for z in messages %}{% if z.role == 'assistant' and '</think>' in z.content %}!{% endif %}{% endfor %}",
    "{% if '?' in messages[-2].content %}!{% endif %}",
    "{{ messages[-2].content | length }}",
)
"""Appended: they read what the turn says."""


@cache
def at_hand() -> list[Subject]:
    """Not on import: it compiles every template, and each test process imports this."""
    return subjects()


@cache
def proved() -> list[Subject]:
    """Templates at hand of which all is proved."""
    found = []
    for subject in at_hand():
        proof = proof_of(subject, QUESTION, "{}")
        if proof.parts is not None and proof.independent and Source.TURN not in proof.reads:
            found.append(subject)
    return found


def mutant(i: int) -> tuple[Subject, frozenset[Source]]:
    """A template, and what it reads one of; where fewer than fifty are at hand, some come twice."""
    subject, kind = proved()[i % len(proved())], i % 18
    # The last such loop prints them. What others before it print stands before the turn.
    *_, header = (None, *HEADER.finditer(subject.source))
    reads = frozenset({Source.EARLIER, Source.POSITION})
    if kind < 10 or (kind < 14 and header is None):
        source = subject.source + BEHIND[kind % 10]
    elif kind < 14:
        assert header is not None
        before, loop = subject.source[: header.end()], subject.source[header.end() :]
        source = before + INSIDE[kind - 10] + loop
    else:
        source, reads = subject.source + OWN[kind - 14], frozenset({Source.TURN})
    return Subject(f"{subject.name} {i}-{kind}", source, subject.names), reads


@pytest.mark.parametrize("number", range(50))
def test_one_more_dependence_is_always_found(number: int) -> None:
    subject, reads = mutant(number)
    assert template_environment(subject.source) is not None
    proof = proof_of(subject, QUESTION, "{}")

    assert proof.parts is None, subject.name
    assert proof.reads & reads, subject.name
    assert Source.TURN in reads or not proof.independent, subject.name


@pytest.mark.parametrize("part", range(4))
def test_random_renders_are_as_proved(part: int) -> None:
    tally = Tally()
    for number, subject in enumerate(at_hand()[part::4]):
        for draw in range(3):
            random = Random(f"{part}:{number}:{draw}")
            examine(subject, shapes(random), random, tally, renders=3)

    assert tally.part_checks > 40
    assert tally.history_checks > 20


@pytest.mark.parametrize("part", range(2))
def test_random_templates_render_as_proved(part: int) -> None:
    tally = Tally()
    for number in range(50):
        subject = made(f"ci:{part}:{number}")
        if template_environment(subject.source) is not None:
            random = Random(f"{part}:{number}")
            for _ in range(3):
                examine(subject, shapes(random), random, tally, renders=4)

    assert tally.part_checks > 10
    assert tally.history_checks > 10


def test_a_false_proof_is_noticed() -> None:
    honest = Subject("honest", "{% for m in messages %}{{ m.content }};{% endfor %}", {})
    liar = Subject("liar", "{% for m in messages %}{{ m.content }};{{ messages | length }}{% endfor %}", {})
    proof = proof_of(honest, QUESTION, "{}")
    assert proof.parts is not None

    with pytest.raises(FalseProof, match="P2"):
        compare(liar, QUESTION, replace(proof, independent=False), {}, Random(1), Tally())
    with pytest.raises(FalseProof, match="P1"):
        compare(liar, QUESTION, replace(proof, parts=None), {}, Random(1), Tally())
