"""Reports on the tiny tokenizer, on templates made to be difficult, and on real ones."""

import pytest
from tests.property.families import GENERATION, LOOP
from tests.support.tiny_tokenizers import MakeTokenizer
from tests.tokenizers.real import real_tokenizer

from rolloutpool_common.rendering.checks.exactness import ConstructVerdict
from rolloutpool_common.rendering.checks.report import TokenizerReport, TokenizerVerdict, examine

WITH_CALLS = LOOP.replace(
    "m.content", "m.content + (m.tool_calls[0].function.arguments | tojson if m.tool_calls else '')"
)

SPLIT = WITH_CALLS.replace("m.content", "(m.content.split('</think>')[-1] if m.role == 'assistant' else m.content)")


def found(report: TokenizerReport) -> dict[str, str]:
    return {finding.probe: finding.detail for finding in report.findings}


@pytest.mark.parametrize(
    ("template", "edit"),
    [
        (SPLIT + GENERATION, "thinking is removed"),
        (WITH_CALLS.replace("m.content", "(m.content | trim)") + GENERATION, "white space"),
        (LOOP + GENERATION, "calls are left out"),
        (WITH_CALLS + GENERATION.replace("\n'", "\n<think>\n'"), "the generation prompt is not kept"),
        (WITH_CALLS + GENERATION + "{% if 0 %}{{ strftime_now('%d') }}{% endif %}", "today's date"),
        (
            "{% for m in messages if m.role == 'system' and messages | length < 3 %}{{ m.content }}{% endfor %}"
            + WITH_CALLS.replace("in messages", "in messages if m.role != 'system'")
            + GENERATION,
            "the system message moves",
        ),
        (
            "{% for m in messages %}{% if tools and loop.last %}{{ tools | tojson }}{% endif %}"
            + WITH_CALLS.removeprefix("{% for m in messages %}")
            + GENERATION,
            "tools move",
        ),
        (
            WITH_CALLS.replace("m.content +", "(m.content if not m.tool_calls else '') +") + GENERATION,
            "beside its calls is left out",
        ),
    ],
)
def test_edits_of_history_need_a_trainer_that_keeps_ids(
    make_tokenizer: MakeTokenizer, template: str, edit: str
) -> None:
    report = examine(make_tokenizer(template))
    assert report.verdict is TokenizerVerdict.KEEPING
    assert edit in report.reason
    assert edit in found(report)["history"]


def test_a_template_without_tool_results_is_refused(make_tokenizer: MakeTokenizer) -> None:
    template = LOOP.replace("m.content", "(m.content if m.role != 'tool' else raise_exception('no tools'))")
    report = examine(make_tokenizer(template + GENERATION))
    assert (report.verdict, report.without_tools) == (TokenizerVerdict.REFUSE, TokenizerVerdict.EXACT)
    assert "no tools" in report.reason


def test_a_template_that_counts_on_tools_is_refused_without_them_only(make_tokenizer: MakeTokenizer) -> None:
    report = examine(make_tokenizer("{% for t in tools %}{{ t.function.name }}{% endfor %}" + WITH_CALLS + GENERATION))
    assert (report.verdict, report.without_tools) == (TokenizerVerdict.EXACT, TokenizerVerdict.REFUSE)
    assert "first prompt" in [finding.name for finding in report.refused(tools=False)]
    assert not report.refused(tools=True)
    verdicts = {finding.name: finding.verdict for finding in report.constructs}
    assert verdicts["typed control tokens"] is verdicts["user message, tools shown"] is ConstructVerdict.EXACT


def test_a_template_that_tears_typed_control_tokens_is_refused(make_tokenizer: MakeTokenizer) -> None:
    report = examine(make_tokenizer(WITH_CALLS.replace("m.content", "(m.content[:12] + m.content[-12:])") + GENERATION))
    assert report.verdict is report.without_tools is TokenizerVerdict.REFUSE


@pytest.mark.real_tokenizer
@pytest.mark.parametrize(
    ("name", "verdict", "without_tools", "reason"),
    [
        ("qwen2_5", TokenizerVerdict.EXACT, TokenizerVerdict.EXACT, ""),
        ("qwen3", TokenizerVerdict.KEEPING, TokenizerVerdict.KEEPING, "thinking is removed"),
        ("llama3_2", TokenizerVerdict.KEEPING, TokenizerVerdict.KEEPING, "beside its calls is left out"),
        ("mistral_nemo", TokenizerVerdict.KEEPING, TokenizerVerdict.KEEPING, "the system message moves; tools move"),
        ("deepseek_v3", TokenizerVerdict.KEEPING, TokenizerVerdict.EXACT, "calls are left out"),
        ("gemma3", TokenizerVerdict.REFUSE, TokenizerVerdict.KEEPING, "must alternate"),
        ("template:glm4moe", TokenizerVerdict.KEEPING, TokenizerVerdict.KEEPING, "thinking"),
        ("template:gptoss", TokenizerVerdict.KEEPING, TokenizerVerdict.KEEPING, ""),
    ],
)
def test_real_tokenizers(name: str, verdict: TokenizerVerdict, without_tools: TokenizerVerdict, reason: str) -> None:
    report = examine(real_tokenizer(name))
    assert (report.verdict, report.without_tools) == (verdict, without_tools)
    assert reason in report.reason


@pytest.mark.parametrize(
    ("family", "says", "fine"),
    [
        ("{{ m.content }}", "nothing is rendered", True),
        ("{{ ('+' if m.content | length > 90 else '') + m.content }}", "one question is rendered", True),
        ("{{ m.content }}{{ messages | length }}", "the whole history is rendered (line 2, ", False),
    ],
)
def test_it_says_what_a_delta_costs_and_which_line_is_to_blame(
    make_tokenizer: MakeTokenizer, family: str, says: str, fine: bool
) -> None:
    loop = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}" + family + "{{ '<|im_end|>\n' }}{% endfor %}"
    template = loop + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    findings = {finding.probe: finding for finding in examine(make_tokenizer(template)).findings}
    found = findings["cost of a user message"]
    assert found.detail.startswith(says)
    assert found.fine is fine
