"""The check finds what is wrong: each defect that the pool once had, put back by hand, is called WRONG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.property.families import FAMILIES, GENERATION
from tests.support.tiny_tokenizers import MakeTokenizer, write_tokenizer
from tests.tokenizers.real import REAL_NAMES, TEMPLATE_NAMES, real_tokenizer

from rolloutpool_common.rendering import ChatTokenizer, RerenderCounter, load_tokenizer
from rolloutpool_common.rendering.checks.constructs import Met
from rolloutpool_common.rendering.checks.exactness import (
    ConstructFinding,
    ConstructVerdict,
    full_render_of,
    try_constructs,
    try_recount,
)
from rolloutpool_common.rendering.delta import Delta
from rolloutpool_common.rendering.turn_end import AnswerEnd, TurnEnd

WRONG, REFUSED, EXACT = ConstructVerdict.WRONG, ConstructVerdict.REFUSED, ConstructVerdict.EXACT
UNCHECKED = ConstructVerdict.UNCHECKED

Patch = Callable[[pytest.MonkeyPatch], None]


def found(tokenizer: ChatTokenizer) -> dict[str, ConstructFinding]:
    return {finding.name: finding for finding in try_constructs(tokenizer, full_render_of(tokenizer))}


def family(name: str, directory: Path) -> ChatTokenizer:
    known = FAMILIES[name]
    write_tokenizer(directory, known.template, known.special, known.eos)
    return load_tokenizer(str(directory))


def wrong(findings: dict[str, ConstructFinding]) -> list[str]:
    return [name for name, finding in findings.items() if finding.verdict is WRONG]


def test_a_template_that_needs_tools_is_exact_with_tools(tmp_path: Path) -> None:
    findings = found(family("needs_tools", tmp_path))
    assert not wrong(findings)
    assert {findings[name].verdict for name in ("tool result", "tool rounds")} == {EXACT}
    # Without tools it raises an error itself.
    assert findings["first prompt"].verdict is REFUSED
    shown = {name: finding for name, finding in findings.items() if name.endswith(", tools shown")}
    assert {finding.verdict for name, finding in shown.items() if finding.met is Met.ALWAYS} == {EXACT}
    assert "user message, tools shown" in shown


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "needs_tools"])
def test_families_of_every_construct_are_exact(name: str, tmp_path: Path) -> None:
    findings = found(family(name, tmp_path))
    assert not wrong(findings)
    met = [f for f in findings.values() if f.met is not Met.RARELY]
    assert not [f.name for f in met if f.verdict is REFUSED]
    assert len([f for f in met if f.verdict is EXACT]) >= 17


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", sorted({*REAL_NAMES, *TEMPLATE_NAMES}))
def test_no_real_tokenizer_is_wrong(name: str) -> None:
    findings = found(real_tokenizer(name))
    assert not wrong(findings)
    assert findings["first prompt"].verdict is EXACT
    assert findings["user message"].verdict is EXACT
    for finding in findings.values():
        assert bool(finding.reason) is (finding.verdict is not EXACT)


def altered(change: Callable[[Delta], Delta]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = ChatTokenizer.render_delta

        def render(self: ChatTokenizer, *arguments: Any, **options: Any) -> Delta:
            return change(real(self, *arguments, **options))

        monkeypatch.setattr(ChatTokenizer, "render_delta", render)

    return patch


def asked_with(monkeypatch: pytest.MonkeyPatch, other: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    real = ChatTokenizer.render_delta

    def render(self: ChatTokenizer, *arguments: Any, **options: Any) -> Delta:
        return real(self, *arguments, **{**options, **other(options)})

    monkeypatch.setattr(ChatTokenizer, "render_delta", render)


def one_dummy_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_with(monkeypatch, lambda options: {"history": [{"role": "user", "content": "x"}, *options["history"][-1:]]})


def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_with(monkeypatch, lambda _: {"tools": None})


def first_control_string_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TurnEnd._controls

    def controls(self: TurnEnd, start: str, end: str | None, *, calls: bool) -> Sequence[Any]:
        return real(self, start, end, calls=calls)[:1]

    monkeypatch.setattr(TurnEnd, "_controls", controls)


def no_other_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TurnEnd.__init__

    def without(self: TurnEnd, pattern: Any, stops: frozenset[str], answer: AnswerEnd) -> None:
        real(self, pattern, frozenset(), answer)

    monkeypatch.setattr(TurnEnd, "__init__", without)


@pytest.mark.parametrize(
    ("name", "patch", "constructs"),
    [
        ("no_think", one_dummy_context, {"switch words of the template"}),
        ("rounds", one_dummy_context, {"user message"}),
        ("counted_results", one_dummy_context, {"tool rounds", "parallel calls"}),
        ("wrapped_with_tools", no_tools, {"tool result", "tool rounds"}),
        ("ends_twice", first_control_string_ends_the_turn, {"user message"}),
        ("plain_headers", altered(lambda d: Delta(d.close_ids, d.glue_ids[1:])), {"user message", "tool result"}),
        ("call_markup", altered(lambda d: Delta((), d.glue_ids)), {"stop withheld after a call"}),
        ("built_headers", altered(lambda d: Delta((), d.glue_ids)), {"stop withheld after an answer"}),
        ("built_headers", no_other_stops, {"other stop ids"}),
        ("built_headers", altered(lambda d: Delta(d.close_ids, d.glue_ids[:-1])), {"user message", "tool result"}),
        ("built_headers", altered(lambda d: Delta(d.close_ids, (*d.glue_ids, 7))), {"user message", "tool result"}),
    ],
)
def test_a_broken_renderer_is_called_wrong(
    name: str, patch: Patch, constructs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    findings = found(family(name, tmp_path))
    assert constructs <= set(wrong(findings)), findings
    for construct in constructs:
        failing = findings[construct].failing
        assert failing is not None
        assert failing.ours != failing.template
        assert failing.case in findings[construct].reason
        assert failing.messages[-1]["role"] in ("user", "tool")


def test_the_same_text_in_other_ids_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = family("built_headers", tmp_path)

    def spelled(delta: Delta) -> Delta:
        control = tokenizer.control_ids
        ids = [
            piece
            for token in delta.glue_ids
            for piece in (
                [token] if token in control else [i for c in tokenizer.decode([token]) for i in tokenizer.encode(c)]
            )
        ]
        return Delta(delta.close_ids, tuple(ids))

    altered(spelled)(monkeypatch)
    finding = found(tokenizer)["user message"]
    assert finding.verdict is WRONG
    assert "in other ids" in finding.reason
    assert finding.failing is not None
    assert finding.failing.ours == finding.failing.template


def test_messages_that_both_leave_out_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that equals the template's is no proof where the template drops the message: nobody would see it."""
    write_tokenizer(
        tmp_path,
        FAMILIES["rounds"].template.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}"),
    )
    tokenizer = load_tokenizer(str(tmp_path))
    assert found(tokenizer)["tool result"].verdict is REFUSED
    monkeypatch.setattr("rolloutpool_common.rendering.delta._check_marks", lambda *_: None)
    finding = found(load_tokenizer(str(tmp_path)))["tool result"]
    assert finding.verdict is WRONG
    assert "leaves out a new message" in finding.reason


def test_a_refusal_has_the_templates_reason_and_the_case(tmp_path: Path) -> None:
    template = "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endfor %}"
    write_tokenizer(tmp_path, template + FAMILIES["rounds"].template)
    finding = found(load_tokenizer(str(tmp_path)))["tool result"]
    assert finding.verdict is REFUSED
    assert "no tools here" in finding.reason
    assert finding.failing is not None
    assert finding.failing.ours == ""


def test_what_the_template_itself_cannot_render_is_not_vouched_for(tmp_path: Path) -> None:
    """Its delta is proved to be the same behind any history, so it is no refusal; but nothing tells if it is right."""
    template = "{% if messages | length > 3 %}{{ raise_exception('too long') }}{% endif %}"
    write_tokenizer(tmp_path, template + FAMILIES["built_headers"].template, FAMILIES["built_headers"].special)
    findings = found(load_tokenizer(str(tmp_path)))
    assert findings["tool rounds"].verdict is UNCHECKED
    assert "too long" in findings["tool rounds"].reason
    assert findings["tool result"].verdict is EXACT


NEEDS_OBJECTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments.items() %}{{ k + '=' + v }}{% endfor %}{% endfor %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION
)


def counted(tokenizer: ChatTokenizer) -> list[tuple[str, ConstructVerdict]]:
    found = try_recount(tokenizer, full_render_of(tokenizer))
    return [(finding.name.rpartition(", ")[2], finding.verdict) for finding in found]


def test_a_form_that_the_template_refuses_is_not_checked(make_tokenizer: MakeTokenizer) -> None:
    assert counted(make_tokenizer(NEEDS_OBJECTS)) == [
        ("arguments as text", "not checked"),
        ("arguments parsed", "exact"),
    ]


def test_a_wrong_length_is_wrong(tiny: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = RerenderCounter.count
    monkeypatch.setattr(RerenderCounter, "count_new", lambda *_: None)
    monkeypatch.setattr(RerenderCounter, "count", lambda self, messages: real(self, messages) + (len(messages) > 3))
    (finding, _) = try_recount(tiny, full_render_of(tiny))
    assert (finding.verdict, finding.exact, finding.tried) == (ConstructVerdict.WRONG, 2, 3)
    assert "prompt 3 has" in finding.reason
