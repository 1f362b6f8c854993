"""How much of a turn's end the policy has sampled itself. The rest is written for it; nothing is written twice.

`text` is what the template writes after the sentinel, so it begins with the end of the policy's turn.

1. If the policy's last ids are a control token (and white space), that token is looked up in the end. All up to that
   place was sampled. Where an end repeats a control token, the last place counts whose text before it was sampled too;
   where none was, the token stands in place of the whole end.
2. If the policy stopped at another stop token of its family, that token takes the place of the end's own. Where a
   header ends the turn in front of it, such as GLM's `<|user|>`, it is still written.
3. If it sampled neither, because the turn was cut or its stop was withheld, nothing of the end was sampled. After an
   answer the whole end is written. After a call only its stop is: what precedes the stop belongs to the call, and the
   policy has spelled that in its own way. Where calls have no stop, what ends answers too is written, such as a
   separator.

Example: an end `</call><|im_end|>`. The policy sampled `…</call>`, so `<|im_end|>` is written.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.errors import TemplateRefused, TurnEndNotFound
from rolloutpool_common.rendering.template import SAMPLE_TOOL, Template

SAMPLED_TAIL = 48
"""Sampled ids that are looked at; no family ends a turn with more."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The end of what the policy sampled."""

    control: str
    """The last control string, if nothing but white space follows it; else empty."""
    before: Callable[[], str]
    """The text before it; decoded only where an end writes its control string twice."""
    space: str
    """The white space after it."""
    any: bool
    """Whether the policy sampled anything at all."""


def sampled_tail(ids: Sequence[int], codec: Codec) -> Sampled:
    """Reads the last ids of a turn."""
    tail, control = list(ids[-SAMPLED_TAIL:]), codec.control_strings
    at = len(tail) - 1
    while at >= 0 and tail[at] not in control:
        at -= 1
    space = codec.decode(tail[at + 1 :]) if at + 1 < len(tail) else ""
    if at < 0 or space.strip():
        return Sampled("", lambda: codec.decode(tail), "", bool(tail))
    return Sampled(control[tail[at]], lambda: codec.decode(tail[:at]), space, True)


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """How a template ends an answer."""

    text: str
    """What it writes behind an answer, at the end of the conversation."""
    close: str | None
    """The control string that ends it, there or before another message: a known stop, or else the last one."""
    header: str
    """The control string with which a user's message begins; empty where there is none."""


def find_answer_end(template: Template, pattern: re.Pattern[str], stops: frozenset[str]) -> AnswerEnd:
    """Finds how a template ends an answer."""
    mark, user = sentinel.SENTINEL, {"role": "user", "content": "x"}
    answer, last = {"role": "assistant", "content": mark}, {"role": "user", "content": mark}
    text, close, header = "", None, ""
    # Some templates can be rendered with tools only.
    for tools in (None, [SAMPLE_TOOL]):
        with suppress(TemplateRefused):
            text = sentinel.after_sentinel(template.render([user, answer], tools=tools, generation_prompt=False)) or ""
            before = template.render([last], tools=tools).partition(mark)[0]
            # A control string further in front ends the system message, and may end turns as well.
            header = next((m for m in reversed(pattern.findall(before)) if before.rstrip().endswith(m)), "")
            controls = pattern.findall(text)
            if not controls:
                # Some templates, such as Apertus', end an answer only before another message.
                followed = template.render([user, answer, last], tools=tools).split(mark)[1:-1]
                controls = [found for found in pattern.findall("".join(followed)) if found in stops - {header}][:1]
            close = next((control for control in controls if control in stops), (controls or [None])[-1])
            break
    return AnswerEnd(text, close, header)


class TurnEnd:
    """Cuts the end of a turn."""

    def __init__(self, pattern: re.Pattern[str], stops: frozenset[str], answer: AnswerEnd) -> None:
        """`stops` are the control strings that policies stop at; `answer` says how the template ends answers."""
        self._pattern = pattern
        self._stops = stops
        self._answer = answer
        self._answer_closes = pattern.search(answer.text) is not None

    def taken(self, text: str, start: str, end: str | None, sampled: Sampled, *, calls: bool) -> tuple[int, int]:
        """Two offsets in `text`: where what the policy has not sampled begins, and where the turn's end is over."""
        controls = self._controls(start, end, calls=calls)
        stops = [match for match in controls if match.group() in self._stops]
        over = controls[-1].end() if controls else 0
        if sampled.control:
            found = self._found(start, end, controls, sampled, calls=calls)
            if found is not None:
                taken = found + shared_length(start[found:], sampled.space)
                return taken, max(over, taken)
        # A stop that this end does not have: it stands in place of the end's own.
        if sampled.control in self._stops:
            taken = stops[-1].end() if stops else over
            if controls and self._answer.close == self._answer.header:
                taken = controls[-1].start()
            elif calls and end is not None and not controls:
                taken = self._spelled(end)
            taken += shared_length(start[taken:], sampled.space)
            return taken, max(over, taken)
        if not calls:
            return 0, over
        if stops:
            return stops[0].start(), over
        if end is None:
            raise TurnEndNotFound("The turn was cut in a call, and the template does not show where a call ends.")
        # The end has no known stop. If answers end with a control token, the last one of this end is written; otherwise
        # only what answers end with, too.
        if not self._answer.close or not controls:
            return self._spelled(end), self._spelled(end)
        return controls[-1].start(), over

    def _spelled(self, end: str) -> int:
        """The offset in a call's end up to which the policy spells it: behind that stands what ends answers as well."""
        return len(end) if self._answer_closes else len(end.removesuffix(self._answer.text))

    def _found(
        self, start: str, end: str | None, controls: Sequence[re.Match[str]], sampled: Sampled, *, calls: bool
    ) -> int | None:
        """The offset up to which the policy sampled the end; None where its control token is not in it."""
        places = [m for m in controls if m.group() == sampled.control]
        if len(places) > 1:
            # Policies spell calls in their own way.
            spelled: Callable[[str], str] = (lambda text: "".join(text.split())) if calls else str
            before = spelled(sampled.before())
            sampled_too = (m for m in reversed(places) if before.endswith(spelled(start[: m.start()])))
            return next(sampled_too, places[-1]).end()
        if places:
            return places[0].end()
        if end is not None and not self._answer_closes:
            behind = start[len(end) :]
            header = self._pattern.match(start, len(start) - len(behind.lstrip()))
            if header is not None and header.group() == sampled.control:
                return header.end()
        return None

    def _controls(self, start: str, end: str | None, *, calls: bool) -> list[re.Match[str]]:
        """The control strings of the turn's end, without those of the next header."""
        if end is not None:
            return list(self._pattern.finditer(end))
        # The end is not known. It reaches to the first stop; without a stop it is the first control string, which
        # follows an answer at once, and a call after the rest of its text.
        found = list(self._pattern.finditer(start))
        stop = next((i for i, match in enumerate(found) if match.group() in self._stops), None)
        if stop is not None:
            return found[: stop + 1]
        return found[:1] if found and (calls or not found[0].start()) else []


def shared_length(one: str, other: str) -> int:
    """Length of the longest text that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
