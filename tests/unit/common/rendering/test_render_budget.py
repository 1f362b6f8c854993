"""Templates whose renders never end, or take too long, are stopped; all others render what they rendered before."""

import gc
import time
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.property.families import GENERATION, LOOP
from tests.support.tiny_tokenizers import write_tokenizer

from rolloutpool_common.rendering import (
    ChatTokenizer,
    RerenderCounter,
    TokenizerLoadError,
    load_tokenizer,
    render_budget,
)
from rolloutpool_common.rendering.errors import RenderFailed, RenderTooCostly
from rolloutpool_common.rendering.render_budget import INTERCEPTED, RenderBudget, guard

USER: dict[str, Any] = {"role": "user", "content": "go on"}
LONG: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "yes"}, USER] * 4
ENDLESS = {
    "ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "condition": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "lists": "{% set a = range(99999)|list %}{% for i in a %}{% for j in a %}{{ j }}{% endfor %}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters": "{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
}
LARGE = (
    "{{ 10 ** (10 ** 9) }}",
    "{% set n = 10 %}{{ n ** (n ** n) }}",
    "{{ 'x' * 10 ** 9 }}",
    "{{ [0] * 999999999 }}",
    "{{ lipsum(999999999) }}",
    "{{ 'x'|slice(999999999)|list }}",
    "{{ 'x'|batch(999999999, 'y')|list }}",
)


def load(directory: Path, template: str, seconds: float = 0.1) -> ChatTokenizer:
    write_tokenizer(directory, template)
    return load_tokenizer(str(directory), render_seconds=seconds)


@pytest.mark.parametrize("loops", ENDLESS.values(), ids=list(ENDLESS))
def test_a_template_that_never_ends_cannot_be_loaded(tmp_path: Path, loops: str) -> None:
    start = time.thread_time()
    with pytest.raises(TokenizerLoadError, match=r"took more than 0\.\d s of CPU time.*TEMPLATE_CPU_SECONDS=0\.1"):
        load(tmp_path, loops + LOOP + GENERATION)
    assert time.thread_time() - start < 2


@pytest.mark.parametrize("loops", ENDLESS.values(), ids=list(ENDLESS))
def test_one_that_never_ends_after_some_messages_refuses_the_rollout_then(tmp_path: Path, loops: str) -> None:
    template = loops.split("{% endmacro %}")
    macro = "{% endmacro %}".join([*template[:-1], ""])
    tokenizer = load(
        tmp_path, macro + LOOP + "{% if messages|length > 9 %}" + template[-1] + "{% endif %}" + GENERATION
    )
    assert tokenizer.render_text(LONG[:3]).endswith("<|im_start|>assistant\n")
    start = time.thread_time()
    with pytest.raises(RenderTooCostly) as caught:
        tokenizer.render_prompt(LONG)
    with pytest.raises(RenderTooCostly):
        RerenderCounter(tokenizer, tools=None, template_kwargs=None).count(LONG)
    assert time.thread_time() - start < 2
    assert str(tmp_path) in caught.value.message
    assert "render 12 messages" in caught.value.message


@pytest.mark.parametrize("expression", LARGE)
def test_one_step_cannot_make_something_huge(tmp_path: Path, expression: str) -> None:
    start = time.thread_time()
    tokenizer = load(tmp_path, LOOP + "{% if messages|length > 9 %}" + expression + "{% endif %}" + GENERATION)
    with pytest.raises(RenderFailed, match="OverflowError"):
        tokenizer.render_prompt(LONG)
    assert time.thread_time() - start < 5


def test_quadratic_time_is_refused_for_long_conversations_only(tmp_path: Path) -> None:
    counts = (
        "{% for m in messages %}{% set ns = namespace(n=0) %}{% for e in messages[:loop.index] %}"
        "{% set ns.n = ns.n + (1 if e.role == 'user' else 0) %}{% endfor %}"
        "{{ '<|im_start|>' + m.role + ' ' ~ ns.n ~ '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    )
    tokenizer = load(tmp_path, counts + GENERATION)
    assert "user 8" in tokenizer.render_text(LONG)
    with pytest.raises(RenderTooCostly):
        tokenizer.render_text(LONG * 500)


def test_garbage_that_a_render_collects_is_not_its_work() -> None:
    environment = ImmutableSandboxedEnvironment()
    environment.globals["collect"] = gc.collect
    source = "{% for i in range(32) %}{% if i == 3 %}{{ collect() }}{% endif %}{% endfor %}"
    template = guard(environment, environment.parse(source))
    kept = [[n] for n in range(1_000_000)]
    start = time.thread_time()
    with RenderBudget("x", 0.02).limit([USER]):
        template.render()
    assert time.thread_time() - start > 0.02, len(kept)


def test_long_messages_have_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_budget, "SECONDS_PER_CHARACTER", 1e-3)
    loops = "{% for i in range(49999) %}{% for j in range(60) %}{% endfor %}{% endfor %}"
    tokenizer = load(tmp_path, LOOP + "{% if messages|length > 9 %}" + loops + "{% endif %}" + GENERATION)
    with pytest.raises(RenderTooCostly):
        tokenizer.render_text(LONG)
    assert tokenizer.render_text([*LONG, {"role": "user", "content": "x" * 9000}])


PLAIN = (
    "{% for m in [3, 1, 2] if m > 1 %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}none{% endfor %}",
    "{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}",
    "{% macro f(a, b=2) %}{{ a * b }}{{ caller() if caller }}{% endmacro %}"
    "{{ f(3) }}{% call f(2) %}{{ 'c' }}{% endcall %}",
    "{% for t in [{'c': [{'c': []}]}] recursive %}<{{ loop(t.c) }}>{% endfor %}",
    "{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 3 * 2.5 }}{{ [1] * 2 }}{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2, 3]|slice(2)|list }}",
    "{%- for m in [1, 2] -%}  {{ m }}\n  {%- endfor %} {{ 'x' }}",
    "{% set ns = namespace(n=0) %}{% for i in range(40) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
)


@pytest.mark.parametrize("source", PLAIN)
def test_a_guarded_template_renders_what_it_rendered(source: str) -> None:
    def environment() -> ImmutableSandboxedEnvironment:
        return ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )

    assert guard(environment(), environment().parse(source)).render() == environment().from_string(source).render()


def test_the_sandbox_leaves_what_may_be_huge_to_the_render() -> None:
    assert ImmutableSandboxedEnvironment.intercepted_binops == INTERCEPTED
