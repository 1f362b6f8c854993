"""What new messages add behind a turn of the policy, by transformers alone and the real conversation.

1. The real conversation is rendered whole, with the real tools: history, the policy's turn, the new messages.
2. It is rendered again with a mark in the turn's own words (in the last argument of its last call, where it calls).
   What stands behind the mark is what the template writes behind those words. The first render must end with it; where
   the words themselves decide what follows (`endswith`), the mark moves forward in them until it does.
3. Once for each shape of conversation the new messages get numbers as contents. Each must stand behind the mark, once
   and in order; otherwise the template does not append, and whoever renders must refuse.
4. Tools or a system message that stood in front of the turn before and now stand behind it have moved. The policy has
   seen them, so the conversation is rendered without them. A template that repeats them keeps them.
5. The end of the turn is known by hand, or derived (`ends`). `endings` make of it what a policy samples.

Nothing here is told by the code under test. Where a step cannot tell, the verdict is `Unknown`, with the reason.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.oracle.chat import load_chat
from tests.oracle.encoder import Encoder
from tests.oracle.ends import KNOWN, Derived, End, derived, known
from tests.oracle.forms import (
    BESIDE,
    CALLED,
    DESCRIPTION,
    MARK,
    SYSTEM,
    Message,
    NothingToMark,
    described,
    joined,
    numbered,
    outline,
    with_arguments,
    with_beside_marks,
    with_mark,
    with_system_mark,
)

__all__ = ["Appended", "Ends", "Message", "MustRefuse", "Referee", "TemplateRaised", "Unknown", "Verdict"]

Ends = tuple[tuple[str, ...], tuple[str, ...]]

# A compiled template is remembered by its text, and what else renders in this process may have changed it.
_OWN = "{# the oracle's own #}\n"


class TemplateRaised(Exception):
    """The template has no render of this conversation."""


@dataclass(frozen=True)
class Appended:
    """The template appends: all that it writes behind the turn's own words."""

    text: str
    """With typed control strings in other letters."""
    end: End | None
    """None where nothing tells how a turn with calls ends."""
    calls: bool
    space: str
    """White space that the template itself writes behind the end."""
    replaced: bool = True
    """Whether another stop token would surely take the place of the end."""


@dataclass(frozen=True)
class MustRefuse:
    """No ids can be right."""

    reason: str


@dataclass(frozen=True)
class Unknown:
    """No oracle."""

    reason: str


Verdict = Appended | MustRefuse | Unknown


@dataclass(frozen=True)
class _Shape:
    """What holds for all conversations of the same roles."""

    as_text: bool
    """Arguments are given as JSON text, because the template wants that."""
    in_content: bool
    """The mark stands in the content of a turn with calls."""
    tools: bool
    """Whether tools are rendered; not where they move."""
    system: bool
    """Whether the system message is; not where it moves."""
    stop: Derived | None = None
    """Where the end is not known by hand."""
    controls: int = 0
    """Control strings behind the mark."""
    space: str = ""
    """White space between the end of the turn and the first new message's header."""


class Referee:
    """The oracle of one template."""

    def __init__(self, name: str, directory: Path, ends: Ends | None = None) -> None:
        """`ends` are known by hand; without them the table of `ends` or a derivation decides."""
        self.name = name
        self.chat = load_chat(directory)
        source = self.chat.chat_template
        self.source = "\n".join(source.values()) if isinstance(source, dict) else source
        self.encoder = Encoder(directory, self.source)
        self.eos = str(self.chat.eos_token or "")
        self._ends = ends or KNOWN.get(name)
        self._shapes: dict[str, _Shape | MustRefuse | Unknown] = {}

    @property
    def ends_by_hand(self) -> bool:
        """Whether the ends of turns are known by hand."""
        return self._ends is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
        *,
        header: bool = True,
    ) -> str:
        """The text of a conversation. Raises TemplateRaised."""
        try:
            given = list(tools) if tools else None
            source = self.chat.get_chat_template(tools=given)
            return str(
                self.chat.apply_chat_template(
                    list(messages),
                    tools=given,
                    chat_template=_OWN + source,
                    add_generation_prompt=header,
                    tokenize=False,
                    **kwargs,
                )
            )
        except Exception as error:  # a template is foreign code and may raise anything
            raise TemplateRaised(f"{type(error).__name__}: {error}"[:200]) from None

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Message] | None, kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Ids of a first prompt. Raises TemplateRaised and Mixed."""
        said = [joined(message) for message in messages]
        spelled = self.encoder.spelling.of(said)
        text = self.render(spelled, tools, kwargs)
        if spelled != said and self.encoder.spelling.undone(text) != self.render(said, tools, kwargs):
            raise TemplateRaised("it knows a control string that was typed")
        return self.encoder.beginning(text)

    def judge(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
    ) -> Verdict:
        """Judges what `new` adds behind the last message of `history`, the policy's turn."""
        past, turn = [joined(m) for m in history[:-1]], joined(history[-1])
        given = [joined(m) for m in new]
        key = json.dumps([outline([*past, turn, *given]), bool(tools), kwargs], sort_keys=True)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._shape(past, turn, given, tools, kwargs)
        if not isinstance(shape, _Shape):
            return shape
        try:
            return self._appended(shape, past, turn, given, tools, kwargs)
        except TemplateRaised as raised:
            return Unknown(f"the template raises: {raised}")

    def _appended(
        self,
        shape: _Shape,
        past: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        tools: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
    ) -> Verdict:
        spell = self.encoder.spelling
        shown = tools if shape.tools else None
        before = [with_arguments(m, shape.as_text) for m in (past if shape.system else past[1:])]
        said = with_arguments(turn, shape.as_text)
        plain = self.render([*before, said, *new], shown, kwargs)
        # First all that others typed is spelled; then the new messages alone, where a switch of the past is a token.
        text = None
        own = [m if m["role"] == "assistant" else spell.of(m) for m in before]
        for given in (own, before):
            spelled = [*given, said, *spell.of(list(new))]
            if spelled == [*before, said, *new]:
                text = plain
                break
            written = self.render(spelled, shown, kwargs)
            if spell.undone(written) == plain:
                text = written
                break
        if text is None:
            return Unknown("the template knows a control string that was typed")
        fresh = spell.of(list(new))
        behind = self._behind(text, given, said, fresh, shown, kwargs, in_content=shape.in_content)
        if behind is None:
            return Unknown("the turn's own words change what stands behind them")
        if self.encoder.written(behind) != shape.controls:
            shown_text = self._marked_text([*given], said, numbered(new), shown, kwargs, in_content=shape.in_content)
            if self.encoder.written(shown_text.rpartition(MARK)[2]) != self.encoder.written(behind):
                return Unknown("typed text and the template's add up to a control string")
        calls = bool(turn.get("tool_calls"))
        replaced = shape.stop.replaced if shape.stop else self.ends_by_hand
        return Appended(behind, self._end(behind, shape, calls), calls, shape.space, replaced)

    def _marked_text(
        self,
        past: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        tools: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
        *,
        in_content: bool,
        at: int | None = None,
    ) -> str:
        try:
            marked = with_mark(turn, in_content, at)
        except NothingToMark as reason:
            raise TemplateRaised(str(reason)) from None
        return self.render([*past, marked, *new], tools, kwargs)

    def _behind(
        self,
        text: str,
        past: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        tools: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
        *,
        in_content: bool,
    ) -> str | None:
        """What the template writes behind the turn's own words."""
        in_words = in_content or not turn.get("tool_calls")
        words = turn.get("content") or ""
        places: list[int | None] = [None]
        if in_words and words:
            places += [k for k in sorted({len(words) - 1, len(words) - 6, len(words) // 2, 0}, reverse=True) if k >= 0]
        for at in places:
            marked = self._marked_text(past, turn, new, tools, kwargs, in_content=in_content, at=at)
            _, found, behind = marked.rpartition(MARK)
            if not found:
                continue
            rest = words[at:] if at is not None else ""
            for tail in dict.fromkeys((rest, rest.rstrip())):
                if text.endswith(behind) and behind.startswith(tail):
                    return behind[len(tail) :]
        return None

    def _end(self, behind: str, shape: _Shape, calls: bool) -> End | None:
        if self._ends is not None:
            return known(behind, self._ends[calls])
        if shape.stop is None:
            return None
        if not shape.stop.stop:
            return End(0, 0)
        if shape.stop.stop.startswith("^"):
            return known(behind, (shape.stop.stop,))
        at = -1
        for _ in range(shape.stop.which + 1):
            at = behind.find(shape.stop.stop, at + 1)
            if at < 0:
                return None
        return End(at, at + len(shape.stop.stop))

    def _shape(
        self,
        past: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        tools: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
    ) -> _Shape | MustRefuse | Unknown:
        numbers = numbered(new)
        verdict: MustRefuse | Unknown = Unknown("the template drops the turn")
        moves: set[str] = set()
        for shape in _forms(turn, tools, past):
            # Nothing is left out but what a render before has shown to move.
            if (not shape.tools and tools and DESCRIPTION not in moves) or (not shape.system and SYSTEM not in moves):
                continue
            shown = described(tools) if shape.tools else None
            before = [with_arguments(m, shape.as_text) for m in (past if shape.system else past[1:])]
            if shape.system:
                before = [with_system_mark(m) if i == 0 else m for i, m in enumerate(before)]
            said = with_beside_marks(with_arguments(turn, shape.as_text), shape.in_content)
            try:
                text = self._marked_text(before, said, numbers, shown, kwargs, in_content=shape.in_content)
            except TemplateRaised as raised:
                if isinstance(verdict, Unknown) and not shape.as_text:
                    verdict = Unknown(f"the template raises: {raised}")
                continue
            front, found, behind = text.rpartition(MARK)
            if not found:
                continue
            moved = {word for word in (DESCRIPTION, SYSTEM) if word in behind and word not in front}
            if moved and (moved := {word for word in moved if self._was_seen(word, before, shown, kwargs)}):
                moves.update(moved)
                verdict = MustRefuse("what stood in front of the turn moves")
                continue
            places = [text.count(f"pX{i}Xp") for i in range(len(new))]
            order = [behind.find(f"pX{i}Xp") for i in range(len(new))]
            if places != [1] * len(new) or min(order) < 0 or order != sorted(order):
                return MustRefuse("the template moves, repeats or drops the new messages")
            if shape.in_content and CALLED in behind:
                return Unknown("the template writes some of the calls only")
            if BESIDE in behind[order[0] :]:
                return Unknown("what was said beside the call is written behind its results")
            stop = None
            if self._ends is None:
                alone = self._alone(before, said, shown, kwargs, shape)
                calls = bool(turn.get("tool_calls"))
                stop = derived(behind[: order[0]], alone, self.encoder.spelling.pattern, self.eos, calls=calls)
            found_shape = replace(shape, stop=stop, controls=self.encoder.written(behind))
            end = self._end(behind, found_shape, bool(turn.get("tool_calls")))
            header = behind[end.over : order[0]] if end else ""
            return replace(found_shape, space=header[: len(header) - len(header.lstrip())])
        return verdict

    def _was_seen(
        self, word: str, past: Sequence[Message], tools: Sequence[Message] | None, kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether the policy has read a word in an earlier prompt: the first, or the one before its turn."""
        first = next((i for i, m in enumerate(past) if m["role"] == "assistant"), len(past))
        for prompt in (past[:first], past):
            with suppress(TemplateRaised):
                if word in self.render(prompt, tools, kwargs):
                    return True
        return False

    def _alone(
        self,
        past: Sequence[Message],
        turn: Message,
        tools: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
        shape: _Shape,
    ) -> str | None:
        try:
            text = self.render([*past, with_mark(turn, shape.in_content, None)], tools, kwargs, header=False)
        except TemplateRaised:
            return None
        _, found, behind = text.rpartition(MARK)
        return behind if found else None


def _forms(turn: Message, tools: Sequence[Message] | None, past: Sequence[Message]) -> Iterator[_Shape]:
    calls = bool(turn.get("tool_calls"))
    system = bool(past) and past[0]["role"] in ("system", "developer") and len(past) > 1
    for shown, kept in ((True, True), (False, True), (True, False), (False, False)):
        if (not shown and not tools) or (not kept and not system):
            continue
        for in_content in (False, True) if calls else (False,):
            for as_text in (False, True):
                yield _Shape(as_text, in_content, shown and bool(tools), kept)
