"""Tries every construct with the pool's renderer, and compares the ids with the template's own full render.

Each construct is `exact`, `refused` with the reason, `WRONG` with its smallest case that fails, or `not checked` where
the template itself cannot render such a conversation. One wrong case makes a construct wrong, one refused case makes it
refused.

The prompt lengths that the pool predicts are compared with those of a trainer that renders the whole history each turn
(`try_recount`). Such a trainer may render the arguments of calls as the text that the policy sent, or parse them first
(vLLM does). Both are tried on a conversation of several tool rounds, from the second prompt on: the first one is
reported by the trainer. A wrong length never gives wrong ids, but such a trainer refuses the mask, and the turn is
asked again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rolloutpool_common.rendering.checks.constructs import TOOLS, Construct, ConstructCase, Met, calling, constructs
from rolloutpool_common.rendering.checks.full_render import Expected, FullRender, NoOracle, with_text_arguments
from rolloutpool_common.rendering.errors import RenderFailed, TemplateRefused
from rolloutpool_common.rendering.rerender import RerenderCounter
from rolloutpool_common.rendering.tokenizer import ChatTokenizer
from rolloutpool_common.rendering.turn_end import SAMPLED_TAIL

_MOST_IDS = 4_000
"""Ids and characters of a failing case that are kept: a template may write anything."""


class ConstructVerdict(StrEnum):
    """Says what was found out about a construct."""

    EXACT = "exact"
    REFUSED = "refused"
    WRONG = "WRONG"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class FailingCase:
    """The smallest case that was wrong or refused."""

    case: str
    """In one line."""
    messages: list[dict[str, Any]]
    """The conversation, the policy's turn included."""
    sampled: str
    """The last characters that the policy sampled."""
    ours: str
    """What the pool writes after them; empty where it refuses."""
    template: str
    """What the template writes after them; empty where it is not known."""
    ours_ids: list[int]
    template_ids: list[int]
    """Empty where an id lies on both sides of what was sampled; then the texts differ."""


@dataclass(frozen=True, slots=True)
class ConstructFinding:
    """Holds what was found out about one construct."""

    name: str
    verdict: ConstructVerdict
    reason: str
    """Why it is not exact; empty if it is."""
    met: Met
    needs_tools: bool
    tried: int
    """Cases."""
    exact: int
    """Cases that were compared with the full render, and equal."""
    failing: FailingCase | None
    """Of the construct's verdict, unless it is exact or not checked."""


@dataclass(frozen=True, slots=True)
class _Tried:
    verdict: ConstructVerdict
    reason: str = ""
    failing: FailingCase | None = None


def try_constructs(tokenizer: ChatTokenizer, full: FullRender) -> list[ConstructFinding]:
    """Tries all constructs."""
    tried = constructs(tokenizer.template_words(None))
    found = [_judge(construct, lambda case: _try(tokenizer, full, case)) for construct in tried]
    if not counts_on_tools(found):
        return found
    shown = [
        replace(
            construct,
            name=f"{construct.name}, tools shown",
            needs_tools=True,
            cases=tuple(replace(case, tools=True) for case in construct.cases),
        )
        for construct in tried
        if not construct.needs_tools
    ]
    return [*found, *(_judge(construct, lambda case: _try(tokenizer, full, case)) for construct in shown)]


def counts_on_tools(findings: Sequence[ConstructFinding]) -> bool:
    """Whether the template can be rendered only where tools are shown."""
    verdicts = {finding.name: finding.verdict for finding in findings}
    return (
        verdicts["first prompt"] is ConstructVerdict.REFUSED
        and verdicts["tools in the first prompt"] is ConstructVerdict.EXACT
    )


def full_render_of(tokenizer: ChatTokenizer) -> FullRender:
    """Makes the independent render of a tokenizer."""
    chat = tokenizer.reference
    stops = {tokenizer.decode([i]) for i in tokenizer.stop_ids} | ({chat.eos_token} if chat.eos_token else set())
    return FullRender(chat, sorted(stops))


def _judge(construct: Construct, attempt: Callable[[ConstructCase], _Tried]) -> ConstructFinding:
    """Tries the cases of a construct, and sums up what they gave."""
    tried = [attempt(case) for case in construct.cases]
    verdicts = [one.verdict for one in tried]
    order = (ConstructVerdict.WRONG, ConstructVerdict.REFUSED)
    verdict = next(
        (verdict for verdict in order if verdict in verdicts),
        ConstructVerdict.EXACT if ConstructVerdict.EXACT in verdicts else ConstructVerdict.UNCHECKED,
    )
    # The cases begin with the smallest.
    first = next((one for one in tried if one.verdict is verdict), None)
    reason = "the template has none" if first is None else first.reason
    return ConstructFinding(
        name=construct.name,
        verdict=verdict,
        reason="" if verdict is ConstructVerdict.EXACT else reason,
        met=construct.met,
        needs_tools=construct.needs_tools,
        tried=len(tried),
        exact=verdicts.count(ConstructVerdict.EXACT),
        failing=first.failing if first is not None and verdict in order else None,
    )


def _try(tokenizer: ChatTokenizer, full: FullRender, case: ConstructCase) -> _Tried:
    expected: Expected | None
    try:
        expected, unknown = full.expected(case), ""
    except NoOracle as error:
        expected, unknown = None, str(error)
    try:
        ours = _ours(tokenizer, case, expected)
    except TemplateRefused as refusal:
        return _Tried(ConstructVerdict.REFUSED, refusal.reason, _failing(tokenizer, case, expected, None))
    if expected is None:
        return _Tried(ConstructVerdict.UNCHECKED, unknown)
    fault = expected.lost or _difference(tokenizer, ours, expected)
    if fault:
        return _Tried(ConstructVerdict.WRONG, f"{fault}: {case.label}", _failing(tokenizer, case, expected, ours))
    return _Tried(ConstructVerdict.EXACT)


def _ours(tokenizer: ChatTokenizer, case: ConstructCase, expected: Expected | None) -> list[int]:
    tools, kwargs = TOOLS if case.tools else None, case.template_kwargs
    if not case.new:
        return tokenizer.render_prompt(case.history, tools=tools, template_kwargs=kwargs)
    # Where there is no oracle, it is still found out whether the pool refuses.
    history = list(case.history) if expected is None else expected.history
    sampled = list(tokenizer.closing) if expected is None else expected.sampled_ids[-SAMPLED_TAIL:]
    delta = tokenizer.render_delta(case.new, sampled=sampled, history=history, tools=tools, template_kwargs=kwargs)
    return [*delta.close_ids, *delta.glue_ids]


def _difference(tokenizer: ChatTokenizer, ours: list[int], expected: Expected) -> str:
    """Says how ours differs from the template's; empty if it does not."""
    if expected.ids is not None and ours == expected.ids:
        return ""
    text = tokenizer.decode(ours)
    if expected.least is not None:
        fits = expected.text.endswith(text) and len(text) >= expected.least
        return "" if fits else "other text than the template's"
    if text != expected.text:
        return "other text than the template's"
    return "" if expected.ids is None else "the template's text in other ids"


def _failing(
    tokenizer: ChatTokenizer, case: ConstructCase, expected: Expected | None, ours: list[int] | None
) -> FailingCase:
    history = list(case.history) if expected is None else expected.history
    return FailingCase(
        case=case.label,
        messages=[*history, *case.new],
        sampled=expected.sampled if expected else "",
        ours=tokenizer.decode(ours or ())[:_MOST_IDS],
        template=expected.text[:_MOST_IDS] if expected else "",
        ours_ids=(ours or [])[:_MOST_IDS],
        template_ids=(expected.ids or [])[:_MOST_IDS] if expected else [],
    )


_ROUNDS = 5


def try_recount(tokenizer: ChatTokenizer, full: FullRender) -> list[ConstructFinding]:
    """Counts the prompts of a conversation in both forms of arguments."""
    return [
        _finding(tokenizer, full, "rendered again, arguments as text", as_text=True),
        _finding(tokenizer, full, "rendered again, arguments parsed", as_text=False),
    ]


def _finding(tokenizer: ChatTokenizer, full: FullRender, name: str, *, as_text: bool) -> ConstructFinding:
    verdict, reason, exact, tried = ConstructVerdict.EXACT, "", 0, 0
    counter = RerenderCounter(tokenizer, tools=TOOLS, template_kwargs=None)
    for messages in _prompts(as_text=as_text):
        tried += 1
        try:
            length = len(full.ids(full.text(messages, tools=TOOLS)))
        except NoOracle as error:
            verdict, reason = ConstructVerdict.UNCHECKED, str(error)
            break
        try:
            predicted = counter.count_new(messages)
            predicted = counter.count(messages) if predicted is None else predicted
        except RenderFailed as refusal:
            verdict, reason = ConstructVerdict.REFUSED, refusal.reason
            break
        if predicted != length:
            verdict = ConstructVerdict.WRONG
            reason = f"prompt {tried} has {length} ids, and the pool counts {predicted}"
            break
        exact += 1
    return ConstructFinding(
        name=name,
        verdict=verdict,
        reason=reason,
        met=Met.OFTEN,
        needs_tools=True,
        tried=tried,
        exact=exact,
        failing=None,
    )


def _prompts(*, as_text: bool) -> list[list[dict[str, Any]]]:
    """Returns what a trainer is asked with, turn after turn."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "giraffe"}]
    found = [list(messages)]
    for i in range(_ROUNDS):
        call_id = f"turn{i:05d}"
        turn = calling([(call_id, f"walrus {i}")])
        messages.append(with_text_arguments(turn) if as_text else turn)
        messages.append({"role": "tool", "name": "weigh", "tool_call_id": call_id, "content": f"{i} kilograms"})
        found.append(list(messages))
    messages += [{"role": "assistant", "content": "ibex"}, {"role": "user", "content": "heron"}]
    return [*found, list(messages)]
