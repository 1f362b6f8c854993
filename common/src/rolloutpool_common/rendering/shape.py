"""What a delta depends on: probed once per shape of the new messages, never guessed from a template's name.

A shape is what a template can tell about messages beside their text: roles, keys, kinds of content, the number of calls
in the turn before them, the keys of that turn's other texts, tools and template arguments.

1. Render `[user] + sentinel turn + numbered markers`. All that follows the sentinel is the **base**. Each marker must
   stand in it once and in order, and nowhere else: otherwise the template hoists, moves or drops messages, and the
   shape is refused.
2. Render with and without tools, also after each word that the template tests for: a switch may act only where there
   are tools. If the bases are equal, deltas need no tools. Tools that move to the end (they are in
   the first prompt, but then only after the turn) are left out of deltas, because the policy has seen them already.
3. Render after other histories (`contexts`): one, two and three rounds, parallel calls, thinking, answers, each also
   behind a system message, and each word that the template tests for, first and last in a message. If the base changes
   with the system message alone, the shape depends on it (`Dependence.SYSTEM`). If it changes with anything else, the
   shape depends on all of history (`Dependence.HISTORY`). If earlier content shows up in the base, history moves, and
   the shape is refused.
4. Where the template refuses all of this, try it with an answer in front of the turn: roles that must alternate may
   allow `[result, user]` only there. Such a shape depends on all of history, so that the template judges the real one.

Example: a template ends its prompt with `<think></think>` instead of `<think>` where the system message says
`/no_think`. The source tests for that literal, so step 3 tries it, the base changes, and deltas are rendered with the
real system message from then on.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.contexts import EARLIER, SAID, SYSTEM, USER, histories, switched, switched_systems
from rolloutpool_common.rendering.control_tokens import NONCE
from rolloutpool_common.rendering.errors import HistoryRewritten, RenderFailed, TemplateRefused, TurnEndNotFound
from rolloutpool_common.rendering.template import Message, Template

__all__ = ["Dependence", "Prober", "Shape"]

_TOOL = NONCE + "t"


class Dependence(StrEnum):
    """What, of the messages before a turn, the text after it depends on."""

    NOTHING = "nothing"
    SYSTEM = "system"
    """The system message, such as a switch that turns thinking off."""
    HISTORY = "history"
    """Anything in it, such as the number of a round."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a template continues a turn with messages of certain roles and keys."""

    arguments_as_text: bool
    silent: bool
    """Whether the sentinel turn makes its calls without saying anything."""
    beside: tuple[str, ...]
    """The keys of the sentinel turn's other texts, such as `reasoning_content`."""
    reads_tools: bool
    """Whether deltas are rendered with the tools."""
    depends_on: Dependence
    moves_system: bool
    """Whether the template writes the system message after the policy's turn, and no longer at the start."""
    repeats_system: bool
    """Whether it writes the system message again after the policy's turn, so that deltas have it, too."""
    start: str
    """What the template writes after the sentinel and before the first new message."""
    end: str | None
    """The part of `start` that ends the policy's turn; None where it can't be told from the next header."""
    moves_tools: bool
    """Whether the template writes the tools after the turn instead of at the start, so that deltas leave them out."""


class Prober:
    """Finds shapes of one template."""

    def __init__(self, template: Template, before: Sequence[Message] = ()) -> None:
        """`before` stands between each context and the turn."""
        self._template = template
        self._before = before

    def render(
        self,
        context: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        *,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        generation_prompt: bool = True,
    ) -> tuple[str, str | None]:
        """Renders a conversation in which a sentinel stands for the policy's turn.

        Args:
            context: The messages before the turn.
            turn: The sentinel turn.
            new: The messages after it.
            kwargs: Further variables of the template.
            tools: What the policy is shown that it may call.
            generation_prompt: Whether to end with the header after which the policy speaks.

        Returns:
            The whole text, and what of it follows the sentinel; None where the template left the turn out.

        Raises:
            RenderFailed: The template raised an error.
        """
        given = [*context, *self._before, turn, *new]
        text = self._template.render(given, tools=tools, template_kwargs=kwargs, generation_prompt=generation_prompt)
        return text, sentinel.after_sentinel(text)

    def probe(
        self,
        new: Sequence[Message],
        calls: Sequence[tuple[str, str]],
        silent: bool,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        beside: tuple[str, ...] = (),
    ) -> Shape:
        """Finds the shape of messages after a turn.

        Args:
            new: Messages of the shape; their content does not matter.
            calls: (id, name) of each call that the turn makes.
            silent: Whether the turn makes its calls without saying anything.
            kwargs: Further variables of the template.
            tools: What the policy is shown that it may call.
            beside: The keys of the turn's other texts.

        Returns:
            The shape with the first form of the turn that the template appends these messages to.

        Raises:
            TemplateRefused: It appends them to no form; the reason is that of the first one.
        """
        marks = sentinel.marked(new)
        refusal: TemplateRefused | None = None
        quiet = (silent, not silent) if calls else (False,)
        # Where the shape fits, the form that the real turn has; a template may write what a turn says elsewhere.
        texts = dict.fromkeys((beside, ()))
        for keys, form, as_text in product(texts, quiet, (False, True) if calls else (False,)):
            turn = sentinel.turn(calls, arguments_as_text=as_text, silent=form, beside=keys)
            try:
                return self._shape(turn, marks, as_text, form, keys, kwargs, tools)
            except TemplateRefused as error:
                refusal = refusal or error
        if isinstance(refusal, RenderFailed) and not self._before:
            with suppress(TemplateRefused):
                shape = Prober(self._template, [SAID]).probe(new, calls, silent, kwargs, tools, beside)
                return replace(shape, depends_on=Dependence.HISTORY)
        raise refusal or TurnEndNotFound()

    def start_and_end(
        self,
        context: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[str, str | None]:
        """Finds `Shape.start` and `Shape.end` after this very context; raises TemplateRefused."""
        marks = sentinel.marked(new)
        text, base = self.render(context, turn, marks, kwargs=kwargs, tools=tools)
        if base is None:
            raise TurnEndNotFound("The template drops the policy's turn for these messages, but not for others.")
        _check_markers(text, base, marks)
        return base[: sentinel.first_marker(base)], self._end(context, turn, base, kwargs, tools)

    def _shape(
        self,
        turn: Message,
        marks: Sequence[Message],
        as_text: bool,
        silent: bool,
        beside: tuple[str, ...],
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> Shape:
        text, base = self.render([USER], turn, marks, kwargs=kwargs, tools=tools)
        if base is None:
            raise TurnEndNotFound()
        reads, moves = self._place_of_tools(turn, marks, base, kwargs, tools) if tools else (False, False)
        shown = tools if reads else None
        if tools and shown is None:
            # Deltas leave the tools out, so all else is found out from a render without them.
            text, base = self.render([USER], turn, marks, kwargs=kwargs, tools=None)
            if base is None:
                raise TurnEndNotFound()
        _check_markers(text, base, marks)
        moves_system, repeats_system = self._place_of_system(turn, marks, kwargs, shown)
        return Shape(
            arguments_as_text=as_text,
            silent=silent,
            beside=beside,
            reads_tools=shown is not None,
            depends_on=self._depends_on(turn, marks, base, kwargs, shown, as_text, moves_system),
            moves_system=moves_system,
            repeats_system=repeats_system,
            start=base[: sentinel.first_marker(base)],
            end=self._end([USER], turn, base, kwargs, shown),
            moves_tools=moves,
        )

    def _end(
        self,
        context: Sequence[Message],
        turn: Message,
        base: str,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str | None:
        try:
            _, alone = self.render(context, turn, (), kwargs=kwargs, tools=tools, generation_prompt=False)
        except RenderFailed:
            return None
        # Some templates write an end only before another message, some write another one then, and some always add a
        # generation prompt.
        return alone if alone is not None and base.startswith(alone) else None

    def _place_of_tools(
        self,
        turn: Message,
        marks: Sequence[Message],
        base: str,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[bool, bool]:
        """Whether results are written otherwise with tools, and whether the tools themselves move to the end."""
        try:
            _, bare = self.render([USER], turn, marks, kwargs=kwargs, tools=None)
        except RenderFailed:
            return True, False  # the template counts on tools
        if bare == base:
            return self._switches_read_tools(turn, marks, base, kwargs, tools), False
        # The base changes with the tools: either they move to the end, or results are written otherwise where there are
        # tools. Marked names show which of the two it is.
        named = [_named(tool, f"{_TOOL}{i}e") for i, tool in enumerate(tools)]
        try:
            text, found = self.render([USER], turn, marks, kwargs=kwargs, tools=named)
            first = self._template.render([USER], tools=named, template_kwargs=kwargs)
        except RenderFailed:
            return True, False
        # Moved: shown in the first prompt, then only after the turn.
        moved = found is not None and _TOOL in first and _TOOL in found and _TOOL not in text[: len(text) - len(found)]
        if moved and any(mark["role"] in ("system", "developer") for mark in marks):
            raise HistoryRewritten("The template moves the tools to a late system message, or repeats them there.")
        return not moved, moved

    def _switches_read_tools(
        self,
        turn: Message,
        marks: Sequence[Message],
        base: str,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
    ) -> bool:
        """Whether a word that the template tests for makes results be written otherwise where there are tools."""

        def written(context: Sequence[Message], shown: Sequence[Mapping[str, Any]] | None) -> str | None:
            try:
                return self.render(context, turn, marks, kwargs=kwargs, tools=shown)[1]
            except RenderFailed:
                return None

        for context in (*switched_systems(self._template.words), *switched(self._template.words)):
            found = written(context, tools)
            # Where the word changes nothing, one render tells.
            if found != base and found != written(context, None):
                return True
        return False

    def _depends_on(
        self,
        turn: Message,
        marks: Sequence[Message],
        base: str,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        as_text: bool,
        moves_system: bool,
    ) -> Dependence:
        def behind(context: Sequence[Message]) -> str | None:
            try:
                text, found = self.render(context, turn, marks, kwargs=kwargs, tools=tools)
            except RenderFailed:
                return None  # such a history cannot be, with this template
            if found is None:
                raise TurnEndNotFound("The template drops the policy's turn after a longer history.")
            if any(number >= EARLIER for number in sentinel.markers_in(found)):
                raise HistoryRewritten("The template writes earlier messages after the policy's turn.")
            _check_markers(text, found, marks)
            return found

        def differ(contexts: Iterable[Sequence[Message]], from_text: str | None) -> bool:
            return any((found := behind(context)) is not None and found != from_text for context in contexts)

        words = self._template.words
        past = histories(arguments_as_text=as_text)
        if differ([*past, *switched(words)], base):
            return Dependence.HISTORY
        # A system message that moves to the end would make every base differ, and deltas leave it out anyway.
        if moves_system:
            return Dependence.NOTHING
        asked = behind([SYSTEM, USER])
        # Some templates count messages otherwise behind a system message, so each history is tried there, too.
        if differ(([SYSTEM, *history] for history in past), asked):
            return Dependence.HISTORY
        return Dependence.SYSTEM if differ([[SYSTEM, USER], *switched_systems(words)], base) else Dependence.NOTHING

    def _place_of_system(
        self,
        turn: Message,
        marks: Sequence[Message],
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[bool, bool]:
        """Whether a system message moves behind the turn, or is repeated there.

        The policy has seen one that moves in the first prompt, so deltas leave it out.
        """
        context = [*sentinel.marked([SYSTEM], EARLIER), USER]
        try:
            text, found = self.render(context, turn, marks, kwargs=kwargs, tools=tools)
        except RenderFailed:
            return True, False
        if found is None:
            return True, False
        behind = EARLIER in sentinel.markers_in(found)
        stays = EARLIER in sentinel.markers_in(text[: len(text) - len(found)])
        return behind and not stays, behind and stays


def _named(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = tool.get("function")
    return {**tool, "function": {**function, "name": name}} if isinstance(function, Mapping) else {**tool, "name": name}


def _check_markers(text: str, base: str, marks: Sequence[Message]) -> None:
    """Raises HistoryRewritten unless each of the new messages is written once, in order, after the turn."""
    found = [n for n in sentinel.markers_in(text) if n < EARLIER]
    after = [n for n in sentinel.markers_in(base) if n < EARLIER]
    if found == after == list(range(len(marks))):
        return
    left_out = sorted({marks[i]["role"] for i in range(len(marks)) if i not in found})
    moved = sorted({marks[i]["role"] for i in found if i not in after})
    did = (
        f"leaves out {' and '.join(left_out)} messages"
        if left_out
        else f"writes {' and '.join(moved)} messages in front of the policy's turn instead of behind it"
        if moved
        else "repeats or reorders the new messages"
    )
    raise HistoryRewritten(f"The template {did}. What it does not append cannot be given exact token ids.")
