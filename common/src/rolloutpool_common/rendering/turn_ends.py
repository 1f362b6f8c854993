"""How a template ends the policy's turn: one class per rule, tried in order of trust.

The end of the turn is where a delta begins, and it decides whether the policy's turn still has to be closed. For
ChatML (`UsualToken`), with the sentinel in the place of what the policy said:

    <|im_start|>assistant
    SENTINEL<|im_end|>                 the turn ends with this token: the delta begins after it
    <|im_start|>user                   ┐
    and 3+3?<|im_end|>                 │ the delta
    <|im_start|>assistant              ┘

If the policy sampled `<|im_end|>` itself, the delta is all there is to append. If it was cut by length, one
`<|im_end|>` is appended first, so that the context has the form that the template would have given it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from rolloutpool_common.rendering.dummy_conversation import PLAIN_FORM, SENTINEL
from rolloutpool_common.rendering.errors import RenderFailed
from rolloutpool_common.rendering.template import Template

__all__ = ["Appendix", "DummyRender", "FirstToken", "NextHeader", "OwnToken", "TurnEnd", "UsualToken", "find_close"]

Appendix = tuple[tuple[int, ...], tuple[int, ...]]
"""(close ids, delta ids): what is appended after the last sampled id."""


class TurnEnd(Protocol):
    """Where the policy's turn ends in a render, and what that means for the ids."""

    @property
    def close(self) -> str:
        """The control string that ends the turn; empty where only the next header does."""

    def cut(self, text: str, start: int, control: re.Pattern[str]) -> int | None:
        """Returns where the delta begins.

        Args:
            text: The render.
            start: Where the sentinel ends.
            control: Finds control strings.
        """

    def append(
        self, glue: list[int], last: int | None, control_ids: Mapping[str, int], stop_ids: frozenset[int]
    ) -> Appendix:
        """Returns what to append after the last sampled id.

        Args:
            glue: The ids of the rendered delta.
            last: The last id that the policy sampled; None where it sampled nothing.
            control_ids: Of the control strings.
            stop_ids: All ids that end a turn when the policy samples them.
        """


@dataclass(frozen=True, slots=True)
class DummyRender:
    """What the rules look at when a template is probed."""

    text: str
    """The dummy conversation with the new messages."""
    alone: str | None
    """What follows the sentinel where the dummy stands alone; None where the template refuses that."""

    @property
    def start(self) -> int:
        """Where the last sentinel ends in `text`."""
        return self.text.rfind(SENTINEL) + len(SENTINEL)

    @property
    def continues_alone(self) -> bool:
        """Whether the turn ends in front of the new messages as it does alone."""
        return self.alone is not None and self.text.startswith(self.alone, self.start)

    def ends(self, close: str | None, control: re.Pattern[str], *, has_results: bool) -> Iterator[TurnEnd]:
        """Finds the ways in which the turn may end here, the most trusted first.

        Args:
            close: The control string that this template writes after any assistant message, if it does.
            control: Finds control strings.
            has_results: Whether there are tool results, so that the turn makes calls.
        """
        if SENTINEL not in self.text:
            return
        found = (
            UsualToken.find(self, close, control),
            NextHeader.find(self, close, control),
            OwnToken.find(self, close, control),
            None if has_results else FirstToken.find(self, control),
        )
        yield from (end for end in found if end is not None)


@dataclass(frozen=True, slots=True)
class UsualToken:
    """Rule 1: the turn ends with the control string that ends every assistant message of this template."""

    close: str
    rest: tuple[str, ...] = ()
    """Control strings that belong to the policy's own turn and stand right after `close`."""

    @classmethod
    def find(cls, render: DummyRender, close: str | None, control: re.Pattern[str]) -> "UsualToken | None":
        """Looks for the usual token after the sentinel."""
        end = _end_of(close, render.text, render.start, control) if close else None
        if close is None or end is None:
            return None
        end_alone = _end_of(close, render.alone, 0, control) if render.alone else None
        rest = _control_run(control, render.alone, end_alone) if render.alone and end_alone else ()
        return cls(close, rest if render.text.startswith("".join(rest), end) else ())

    def cut(self, text: str, start: int, control: re.Pattern[str]) -> int | None:
        """See `TurnEnd`."""
        return _end_of(self.close, text, start, control)

    def append(
        self, glue: list[int], last: int | None, control_ids: Mapping[str, int], stop_ids: frozenset[int]
    ) -> Appendix:
        """See `TurnEnd`. The policy may have sampled past the cut, into the rest of its own end."""
        rest = [control_ids[text] for text in self.rest]
        if last in rest:
            return (), tuple(glue[rest.index(last) + 1 :])
        return _closed(self.close, glue, last, control_ids, stop_ids)


@dataclass(frozen=True, slots=True)
class NextHeader:
    """Rule 2: no control string ends the turn; the header of the next message does, and the policy may sample it."""

    skip: int
    """How many characters after the sentinel still belong to the policy's turn."""

    @property
    def close(self) -> str:
        """There is none."""
        return ""

    @classmethod
    def find(cls, render: DummyRender, close: str | None, control: re.Pattern[str]) -> "NextHeader | None":
        """Looks at how the turn ends alone. Where answers have no close token, markup that ends a call is none."""
        if render.alone is None or not render.continues_alone:
            return None
        return None if close and control.search(render.alone) else cls(len(render.alone))

    def cut(self, text: str, start: int, control: re.Pattern[str]) -> int | None:
        """See `TurnEnd`."""
        return start + self.skip

    def append(
        self, glue: list[int], last: int | None, control_ids: Mapping[str, int], stop_ids: frozenset[int]
    ) -> Appendix:
        """See `TurnEnd`. There is nothing to close."""
        return (), _without_sampled_header(glue, last, control_ids)


@dataclass(frozen=True, slots=True)
class OwnToken:
    """Rule 3: the turn ends with another control string than usual, the last one that it has when it stands alone."""

    close: str

    @classmethod
    def find(cls, render: DummyRender, close: str | None, control: re.Pattern[str]) -> "OwnToken | None":
        """Looks at how the turn ends alone. A control string that occurs twice there shows no one place."""
        if render.alone is None or not render.continues_alone or not close:
            return None
        ends = [match.group() for match in control.finditer(render.alone)]
        return cls(ends[-1]) if ends and ends.count(ends[-1]) == 1 else None

    def cut(self, text: str, start: int, control: re.Pattern[str]) -> int | None:
        """See `TurnEnd`."""
        return _end_of(self.close, text, start, control)

    def append(
        self, glue: list[int], last: int | None, control_ids: Mapping[str, int], stop_ids: frozenset[int]
    ) -> Appendix:
        """See `TurnEnd`. The policy may also stop by sampling the header of the next message."""
        rest = _without_sampled_header(glue, last, control_ids)
        return ((), rest) if len(rest) < len(glue) else _closed(self.close, glue, last, control_ids, stop_ids)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Rule 4, without calls only: a control string right after the sentinel ends the turn."""

    close: str

    @classmethod
    def find(cls, render: DummyRender, control: re.Pattern[str]) -> "FirstToken | None":
        """Looks right after the sentinel."""
        first = control.match(render.text, render.start)
        return cls(first.group()) if first else None

    def cut(self, text: str, start: int, control: re.Pattern[str]) -> int | None:
        """See `TurnEnd`."""
        return _end_of(self.close, text, start, control)

    def append(
        self, glue: list[int], last: int | None, control_ids: Mapping[str, int], stop_ids: frozenset[int]
    ) -> Appendix:
        """See `TurnEnd`."""
        return _closed(self.close, glue, last, control_ids, stop_ids)


def find_close(template: Template, control: re.Pattern[str]) -> str | None:
    """Returns the control string that the template writes after an assistant message; None if there is none."""
    try:
        text = template.render(PLAIN_FORM.conversation([]), generation_prompt=False)
    except RenderFailed:
        return None
    start = text.rfind(SENTINEL)
    found = control.search(text, start) if start >= 0 else None
    return found.group() if found else None


def _closed(
    close: str, glue: list[int], last: int | None, control_ids: Mapping[str, int], stop_ids: frozenset[int]
) -> Appendix:
    is_closed = last == control_ids[close] or last in stop_ids
    return (() if is_closed else (control_ids[close],)), tuple(glue)


def _without_sampled_header(glue: list[int], last: int | None, control_ids: Mapping[str, int]) -> tuple[int, ...]:
    """The delta, without its first id if that is a control id and the policy has sampled it already."""
    return tuple(glue[1:] if glue[:1] == [last] and last in control_ids.values() else glue)


def _end_of(close: str, text: str, start: int, control: re.Pattern[str]) -> int | None:
    """Where the first `close` from `start` on ends. A longer control string that begins with it does not count."""
    return next((match.end() for match in control.finditer(text, start) if match.group() == close), None)


def _control_run(control: re.Pattern[str], text: str, start: int) -> tuple[str, ...]:
    """The control strings that follow each other from `start` on."""
    found = []
    while match := control.match(text, start):
        found.append(match.group())
        start = match.end()
    return tuple(found)
