"""How much of a turn's end the policy has sampled itself. The rest is written for it; nothing is written twice.

`text` is what the template writes after the sentinel, so it begins with the end of the policy's turn.

1. If the policy's last ids are a control token (and white space), that token is looked up in the end. All up to that
   place was sampled. Where an end repeats a control token, the place counts whose text before it agrees best.
2. If the policy stopped at another stop token of its family, that token takes the place of the end's own.
3. If it sampled neither, because the turn was cut or its stop was withheld, nothing of the end was sampled. After an
   answer the whole end is written. After a call only its stop is: what precedes the stop belongs to the call, and the
   policy has spelled that in its own way. Where calls have no stop, what ends answers too is written, such as a
   separator.
4. Some templates, such as Apertus', write results into the turn that called, and the policy goes on in it. There a
   call without its end is refused: nothing tells where its end begins.

Example: an end `</call><|im_end|>`. The policy sampled `…</call>`, so `<|im_end|>` is written.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import split_marks
from rolloutpool_common.rendering.errors import TemplateRefused, TurnEndNotFound
from rolloutpool_common.rendering.template import SAMPLE_TOOL, Template

__all__ = ["SAMPLED_TAIL", "Sampled", "TurnEnd", "find_answer_end", "find_close", "sampled_tail", "shared_length"]

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
    tail = list(ids[-SAMPLED_TAIL:])
    control = codec.control_strings
    at = next((i for i in range(len(tail) - 1, -1, -1) if tail[i] in control), None)
    if at is None:
        return Sampled("", lambda: codec.decode(tail), "", bool(tail))
    space = codec.decode(tail[at + 1 :]) if at + 1 < len(tail) else ""
    if space.strip():
        return Sampled("", lambda: codec.decode(tail), "", True)
    return Sampled(control[tail[at]], lambda: codec.decode(tail[:at]), space, True)


def find_answer_end(template: Template) -> str | None:
    """What the template writes after an answer, at the end of the conversation; None where it writes no answer."""
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": sentinel.SENTINEL}]
    # Some templates can be rendered with tools only.
    for tools in (None, [SAMPLE_TOOL]):
        with suppress(TemplateRefused):
            return sentinel.after_sentinel(template.render(said, tools=tools, generation_prompt=False))
    return None


def find_close(answer_end: str, pattern: re.Pattern[str], stops: frozenset[str]) -> str | None:
    """The control string that ends an answer; None if there is none.

    Where an end has several, a known stop; where none of them is one, the last.
    """
    found = [match.group() for match in pattern.finditer(answer_end)]
    return next((text for text in found if text in stops), found[-1] if found else None)


class TurnEnd:
    """Cuts the end of a turn."""

    def __init__(self, pattern: re.Pattern[str], stops: frozenset[str], answer_end: str) -> None:
        """`stops` are the control strings that policies stop at; `answer_end` is what the template ends answers by."""
        self._pattern = pattern
        self._stops = stops
        self._answer_end = answer_end
        self._answers_close = pattern.search(answer_end) is not None

    def taken(self, text: str, start: str, end: str | None, sampled: Sampled, *, calls: bool) -> tuple[int, int]:
        """Two offsets in `text`: where what the policy has not sampled begins, and where the turn's end is over.

        Args:
            text: what the template writes after the sentinel.
            start: the part of it before the first new message.
            end: the part of `start` that ends the turn, if that is known.
            sampled: the end of what was sampled.
            calls: whether the turn makes calls.

        Raises:
            TurnEndNotFound: the turn was cut in a call, and nothing tells where its end begins.
        """
        controls = self._controls(start, end, calls=calls)
        stop = next((match for match in controls if match.group() in self._stops), None)
        over = controls[-1].end() if controls else 0
        if sampled.control:
            found = self._found(start, end, controls, sampled)
            if found is not None:
                taken = found + shared_length(start[found:], sampled.space)
                return taken, max(over, taken)
        # Where the policy has closed its turn, nothing was cut, and what the template writes follows.
        if calls and not sampled.control and end is not None and self._stays_open(text, over, controls):
            raise TurnEndNotFound("The turn was cut in a call, and this template writes results into that same turn.")
        # A stop that this end does not have: it stands in place of the end's own.
        if sampled.control in self._stops:
            taken = stop.end() if stop else over
            if calls and end is not None and not controls:
                taken = self._spelled(end)
            taken += shared_length(start[taken:], sampled.space)
            return taken, max(over, taken)
        if not calls:
            return 0, over
        if stop is not None:
            return stop.start(), max(over, stop.end())
        if end is None:
            raise TurnEndNotFound("The turn was cut in a call, and the template does not show where a call ends.")
        # The end has no known stop. If answers end with a control token, the last one of this end is written; otherwise
        # only what answers end with, too.
        if not self._answers_close or not controls:
            return self._spelled(end), self._spelled(end)
        return controls[-1].start(), over

    def _stays_open(self, text: str, over: int, controls: Sequence[re.Match[str]]) -> bool:
        """Whether a turn that calls goes on behind its results: neither its end nor its results close or open one."""
        closes = {match.group() for match in self._pattern.finditer(self._answer_end)}
        if not controls or not closes or any(match.group() in closes for match in controls):
            return False
        # Only what the template writes: a control string that was typed in a result closes nothing.
        written = (part for part, of_template in split_marks(text[over:]) if of_template)
        following = next(filter(None, map(self._pattern.search, written)), None)
        return following is None or following.group() in closes

    def _spelled(self, end: str) -> int:
        """The offset in a call's end up to which the policy spells it: behind that stands what ends answers as well."""
        return len(end.removesuffix(self._answer_end)) if not self._answers_close else len(end)

    def _found(self, start: str, end: str | None, controls: Sequence[re.Match[str]], sampled: Sampled) -> int | None:
        """The offset up to which the policy sampled the end; None where its control token is not in it."""
        places = [m for m in controls if m.group() == sampled.control]
        if len(places) == 1:
            return places[0].end()
        if places:
            before = sampled.before()
            # Where two places agree equally well, the first one counts.
            return max(places, key=lambda m: (_agreement(start[: m.start()], before), -m.start())).end()
        if end is not None and not self._answers_close:
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


def _agreement(ours: str, theirs: str) -> int:
    """Length of the longest text that both end with."""
    return shared_length(ours[::-1], theirs[::-1])


def shared_length(one: str, other: str) -> int:
    """Length of the longest text that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
