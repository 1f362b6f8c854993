"""Lengths of prompts that are rendered again are compared with the template's own."""

import pytest
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import ChatTokenizer, RerenderCounter
from rolloutpool_common.rendering.checks.exactness import ConstructVerdict, full_render_of
from rolloutpool_common.rendering.checks.recount import try_recount

NEEDS_OBJECTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments.items() %}{{ k + '=' + v }}{% endfor %}{% endfor %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def verdicts(tokenizer: ChatTokenizer) -> list[tuple[str, ConstructVerdict]]:
    found = try_recount(tokenizer, full_render_of(tokenizer))
    return [(finding.name.rpartition(", ")[2], finding.verdict) for finding in found]


def test_both_forms_of_arguments_are_counted(tiny: ChatTokenizer) -> None:
    assert verdicts(tiny) == [("arguments as text", "exact"), ("arguments parsed", "exact")]


def test_a_form_that_the_template_refuses_is_not_checked(make_tokenizer: MakeTokenizer) -> None:
    assert verdicts(make_tokenizer(NEEDS_OBJECTS)) == [
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
