"""Compares the prompt lengths that the pool predicts with those of a trainer that renders the whole history each turn.

Such a trainer may render the arguments of calls as the text that the policy sent, or parse them first (vLLM does).
Both are tried on a conversation of several tool rounds, from the second prompt on: the first one is reported by the
trainer. A wrong length never gives wrong ids, but such a trainer refuses the mask, and the turn is asked again.
"""

from typing import Any

from rolloutpool_common.rendering.checks.constructs import TOOLS, Met, calling
from rolloutpool_common.rendering.checks.exactness import ConstructFinding, ConstructVerdict
from rolloutpool_common.rendering.checks.full_render import FullRender, NoOracle, with_text_arguments
from rolloutpool_common.rendering.errors import RenderFailed
from rolloutpool_common.rendering.rerender import RerenderCounter
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

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
    """What a trainer is asked with, turn after turn."""
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
