"""What is proved of small templates, one construct at a time, and why the rest is not."""

import json
from dataclasses import replace

import pytest
from tests.support.turn_shapes import QUESTION

from rolloutpool_common.rendering.proof.claims import JsonWord, NewMessage, Proof, Source, TurnShape, Word
from rolloutpool_common.rendering.proof.prover import prove
from rolloutpool_common.rendering.transformers_compat import template_environment

TOOL = TurnShape(
    says=False,
    calls=1,
    as_text=False,
    beside=(),
    new=(NewMessage("tool", ("content", "name", "role", "tool_call_id")),),
    system=False,
    tools=False,
)
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
END = "{% if add_generation_prompt %}<a>{% endif %}"


def proof_of(source: str, shape: TurnShape = QUESTION, **kwargs: object) -> Proof:
    """The proof of a template that writes an end of sequence, `</s>`."""
    environment = template_environment(source)
    assert environment is not None
    return prove(environment, source, shape, kwargs=kwargs, names={"eos_token": "</s>"})


def said(behind: str, before: str = "", body: str = "{{ m.content }}") -> str:
    """A template that writes all messages, and something behind each."""
    return before + "{% for m in messages %}[{{ m.role }}]" + body + CALLS + behind + "{% endfor %}" + END


@pytest.mark.parametrize(
    ("behind", "between"),
    [
        ("{{ eos_token }}", "</s>"),
        ("{{ 'x' if m.content | length > 0 }}", "x"),
        ("{{ 'y' if 1 > m.content | length else 'x' }}", "x"),
        ("{% if loop.last %}!{% else %};{% endif %}", ";"),
        ("{{ 'x' if loop.nextitem is defined else 'y' }}", "x"),
        ("{{ 'x' if messages[loop.index0 + 1].role == 'user' else 'y' }}", "x"),
        ("{{ 'x' if messages[-1].role == 'user' }}", "x"),
        ("{% for i in range(2) %}{{ i }}{% endfor %}", "01"),
        ("{% set x %} a {% endset %}{{ x | trim }}", "a"),
        ("{% filter upper %}a{% endfilter %}", "A"),
        ("{% generation %}g{% endgeneration %}", "g"),
        ("{{ {'a': [1, 2]} | tojson }}", '{"a": [1, 2]}'),
        ("{{ ['a', 'b'] | map('upper') | join('-') }}", "A-B"),
    ],
)
def test_what_the_shape_fixes_is_computed(behind: str, between: str) -> None:
    proof = proof_of(said("{% if m.role == 'assistant' %}" + behind + "{% endif %}"))

    assert proof.parts == (f"{between}[user]", Word(0, "content"), "<a>")
    assert proof.independent
    assert proof.reasons == ()


@pytest.mark.parametrize(
    "printed",
    [
        "m.content",
        "m['content']",
        "m.get('content')",
        "m.content | trim",
        "m.content.strip('\n ')",
        "m.content | string",
        "m.content | default('')",
        "m.content | safe",
        "'' ~ m.content",
        "m.content + ''",
        "'{}'.format(m.content)",
        "[m.content] | join",
        "m.content if m.content is string else m.content | tojson",
        "m.content.split('</x>')[-1]",
    ],
)
def test_the_words_of_new_messages_and_of_the_turn_are_followed(printed: str) -> None:
    proof = proof_of(said(";", body="{{ " + printed + " }}"))

    assert proof.parts == (";[user]", Word(0, "content"), ";<a>")


def test_a_guard_is_what_words_are_compared_with() -> None:
    proof = proof_of(said("{% if '/off' in m.content %}!{% endif %}{{ m.content.split('go')[-1] }}"), TOOL)

    assert proof.parts is not None
    assert proof.guard == {"/off", "go"}
    assert Source.NEW in proof.reads


@pytest.mark.parametrize(
    "printed",
    [
        "m.content.rsplit('</x>', 1)[-1]",
        "m.content.split()[-1]",
        "m.content.rstrip() ~ ''",
        "(m.content.split('</x>') | last).strip()",
    ],
)
def test_operations_that_keep_the_end_of_the_turns_words(printed: str) -> None:
    body = "{% if m.role == 'assistant' %}{{ " + printed + " }}{% else %}{{ m.content }}{% endif %}"

    assert proof_of(said(";", body=body)).parts == (";[user]", Word(0, "content"), ";<a>")


@pytest.mark.parametrize(
    "behind",
    [
        "{% if '</think>' in m.content %}A{% else %}B{% endif %}",
        "{% if m.content.endswith('.') %}A{% endif %}",
        "{{ m.content.split('x')[0] }}",
        "{{ m.content | length }}",
        "{{ m.content[0] }}",
        "{{ m.content | upper }}",
        "{{ m.content.replace('', '-') }}",
        "{{ m.content.rstrip('s') }}",
        "{{ m.content.split('s')[-1] }}",
        "{{ m.content.split('a b', 1) | first }}",
        "{% if m.content | trim %}A{% endif %}",
    ],
)
def test_what_the_turns_words_decide_behind_them_is_not_proved(behind: str) -> None:
    proof = proof_of(said("{% if m.role == 'assistant' %}" + behind + "{% endif %}"))

    assert proof.parts is None
    assert Source.TURN in proof.reads
    assert proof.independent
    assert any(Source.TURN in reason.sources for reason in proof.reasons)


@pytest.mark.parametrize(
    ("written", "is_ascii"),
    [
        ("{{ m.content | tojson }}", False),
        ("{{ m.content | tojson(indent=2) }}", False),
        ("{{ m.content | tojson(ensure_ascii=True) }}", True),
    ],
)
def test_words_within_json_are_written_as_python_writes_them(written: str, is_ascii: bool) -> None:
    proof = proof_of(said(";", body="{{ m.content if m.role == 'assistant' else '' }}" + written))
    word = JsonWord(0, "content", ascii=is_ascii)

    assert proof.parts == ('";[user]"', word, '";<a>')
    assert word.write('a "b"\n\u00e9') == json.dumps('a "b"\n\u00e9', ensure_ascii=is_ascii)[1:-1]


@pytest.mark.parametrize(
    "behind",
    [
        # What is assumed of a word is not true of its JSON, which may hold `n` where the word holds a line's end.
        "{{ '.' if 'n' in (m.content | tojson) else ';' }}",
        "{{ m.content | tojson | upper }}",
        "{{ (m.content | tojson).split('n') | first }}",
        "{{ m.content | tojson | length }}",
    ],
)
def test_what_looks_into_the_json_of_a_word_is_not_proved(behind: str) -> None:
    proof = proof_of(said("{% if m.role == 'user' %}" + behind + "{% endif %}"))

    assert proof.parts is None
    assert proof.independent


def test_ids_and_names_are_words_only_where_the_new_messages_own_are_printed() -> None:
    own = proof_of(
        "{% for m in messages %}" + CALLS + "[{{ m.name }}:{{ m.tool_call_id }}]{{ m.content }}{% endfor %}", TOOL
    )
    called = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}"
    turns = proof_of("{% for m in messages %}" + called + "{{ m.content }}{% endfor %}", TOOL)

    assert own.parts == ('"}[:][', Word(0, "name"), ":", Word(0, "tool_call_id"), "]", Word(0, "content"))
    assert turns.parts is None
    assert Source.TURN in turns.reads


@pytest.mark.parametrize(
    ("behind", "parts"),
    [
        (";", (";[tool]", Word(0, "content"), ";<a>")),
        # A turn that says nothing, which is what most calls are, has another end here.
        ("{{ ';' if m.content else '.' }}", None),
        ("{{ ';' if m.content | length > 1 else '.' }}", None),
    ],
)
def test_where_calls_are_not_printed_the_content_has_the_sentinel_and_may_be_empty(
    behind: str, parts: tuple[str | Word, ...] | None
) -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}" + behind + "{% endfor %}" + END
    assert proof_of(source, TOOL).parts is None
    assert proof_of(source, replace(TOOL, spoken=True)).parts == parts


def test_thoughts_beside_the_turn_are_its_own_words() -> None:
    thinks = TurnShape(
        says=True, calls=0, as_text=False, beside=("reasoning",), new=QUESTION.new, system=False, tools=False
    )
    behind = proof_of(said("{{ m.thinking }}"), thinks)

    assert behind.parts is None
    assert Source.TURN in behind.reads
    assert proof_of(said(";", body="{{ m.reasoning_content }}{{ m.content }}"), thinks).parts is not None


def test_a_leading_system_message_is_no_earlier_message() -> None:
    system = TurnShape(says=True, calls=0, as_text=False, beside=(), new=QUESTION.new, system=True, tools=False)
    proof = proof_of(said("{{ messages[0].content }}"), system)

    assert proof.parts is None
    assert proof.independent
    assert Source.SYSTEM in proof.reads
    without = proof_of(said("{{ 'S' if messages[0].role == 'system' }}"))
    assert without.parts == ("[user]", Word(0, "content"), "<a>")


def test_the_message_behind_a_leading_system_message_is_an_earlier_one() -> None:
    system = TurnShape(says=True, calls=0, as_text=False, beside=(), new=QUESTION.new, system=True, tools=False)
    assert not proof_of(said("{{ 'S' if messages[1:][0].role == 'system' }}"), system).independent


def test_two_words_may_be_equal_or_not() -> None:
    source = "{% for m in messages %}" + CALLS + "{{ m.content }}{% if m.name == m.content %}!{% endif %}{% endfor %}"
    assert proof_of(source, TOOL).parts is None


def test_tools_are_unknown_where_they_are_shown() -> None:
    tools = TurnShape(says=True, calls=0, as_text=False, beside=(), new=QUESTION.new, system=False, tools=True)
    source = said("{{ tools | length if tools }}")

    assert proof_of(source).parts is not None
    assert proof_of(source, tools).parts is None
    assert proof_of(source, tools).reads == {Source.TOOLS, Source.NEW}


def test_the_clock_is_named() -> None:
    assert Source.CLOCK in proof_of(said("{{ strftime_now('%H') }}")).reads


def test_reasons_name_the_line_and_the_construct() -> None:
    proof = proof_of(
        "{% for m in messages %}\n{{ m.content }}\n{% if messages | length > 5 %}\nmany\n{% endif %}\n{% endfor %}"
    )

    assert [(reason.line, reason.construct) for reason in proof.reasons] == [
        (3, "if: {% if messages | length > 5 %}"),
    ]
    assert proof.reasons[0].sources == {Source.POSITION}
    assert not proof.independent


@pytest.mark.parametrize(
    "construct",
    [
        "{{ cycler('a', 'b').next() }}",
        "{% set j = joiner(',') %}{{ j() }}",
        "{{ loop.changed(m.role) }}",
        "{{ loop.cycle('a', 'b') }}",
        "{{ lipsum(n=1) }}",
        "{{ [1, 2] | random }}",
        "{{ m is sameas(messages[0]) }}",
        "{% include 'x' %}",
        "{% block x %}{% endblock %}",
        "{{ self }}",
    ],
)
def test_what_is_not_imitated_leaves_the_shape_unknown(construct: str) -> None:
    proof = proof_of(said(construct))

    assert proof.parts is None
    assert not proof.independent
    assert proof.reads == set(Source)
    assert "not understood" in proof.reasons[0].construct


def test_a_template_that_never_prints_the_turn_is_not_proved() -> None:
    proof = proof_of("{% for m in messages %}{{ m.role }}{% endfor %}")

    assert proof.parts is None
    assert not proof.independent
    assert proof.reasons[0].construct.startswith("the turn is never printed")


def test_a_proof_gives_up_where_it_would_take_long() -> None:
    inner = "{% for a in range(9000) %}{% for b in range(9000) %}{% set c = a %}{% endfor %}{% endfor %}"
    proof = proof_of(said(inner))

    assert proof.parts is None
    assert "more than may be computed" in proof.reasons[0].construct


@pytest.mark.parametrize(
    "doubled", ["n.x ~ n.x", "[n.x, n.x]", "{'a': n.x, 'b': n.x}", "n.x + n.x", "n.x | replace('a', 'aa')"]
)
def test_a_proof_gives_up_where_a_value_would_grow_without_end(doubled: str) -> None:
    rounds = "{% for i in range(60) %}{% set n.x = " + doubled + " %}{% endfor %}"
    proof = proof_of("{% set n = namespace(x='a') %}" + rounds + said(""))

    assert proof.parts is None
    assert "a large value" in proof.reasons[0].construct


def test_a_deep_template_is_not_proved() -> None:
    proof = proof_of("{% macro f(x) %}{{ f(x ~ 'a') }}{% endmacro %}" + said("{{ f('a') }}"))

    assert proof.parts is None


def test_a_template_that_jinja_cannot_parse_is_not_proved() -> None:
    environment = template_environment("")
    assert environment is not None

    proof = prove(environment, "{% if %}", QUESTION, kwargs={}, names={})

    assert proof.parts is None
    assert proof.reasons[0].construct.startswith("not understood: a template that cannot be parsed")


@pytest.mark.parametrize("behind", ["", "{{ 'Q' if '/q' in m.content }}", "{{ messages | length }}"])
def test_where_only_parts_are_asked_they_are_the_same(behind: str) -> None:
    environment = template_environment(said(behind))
    assert environment is not None

    whole, less = (
        prove(environment, said(behind), QUESTION, kwargs={}, names={}, whole=whole) for whole in (True, False)
    )

    assert (less.parts, less.guard) == (whole.parts, whole.guard)
    assert whole.independent or not less.independent
