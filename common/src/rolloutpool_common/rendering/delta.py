"""The rule: what new messages add to the prompt, found in renders of the real conversation. Exact, or refused.

1. **Sentinel.** The policy's last turn gets one word more than it has, which occurs nowhere else: behind what an answer
   says, or as the arguments of a call. All that the template writes after that word is the end of the turn, the new
   messages and the header after which the policy speaks.
2. **Marks.** Each new message says a numbered mark instead of its words. Each mark must stand behind the sentinel, once
   and in order. Otherwise the template hoists, moves, merges or drops the message, and it is refused.
3. **Text.** The real new messages, their typed control strings marked (`control_tokens`), behind the sentinel turn.
4. **Cut.** What the policy sampled of its turn's end itself is cut off (`turn_end`). The rest is the **delta**, and
   only that is tokenised, once.
5. **Referee.** The conversation as it is, without any sentinel, must end with the delta's text. If it does not, the
   turn's own words decide what stands behind it, and the delta is refused.

Example, on ChatML. Step 3 gives `… 38SENTINEL<|im_end|>⏎<|im_start|>user⏎Thanks<|im_end|>⏎<|im_start|>assistant⏎`. The
policy sampled `… 38<|im_end|>`, so the delta is all that follows the sentinel's own `<|im_end|>`.

Some templates write the system message, or the tools, behind the turn and no longer in front of it. The policy has seen
them in the first prompt, so such a delta is rendered without them. Nothing else may move.

Nothing is remembered and nothing is guessed, so this costs five renders of the whole history. `short_cuts` says where
less will do, and holds it against this.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import NONCE, marked_strings, without_marks
from rolloutpool_common.rendering.doubts import Use
from rolloutpool_common.rendering.errors import (
    ContentUnsafe,
    HistoryRewritten,
    RenderFailed,
    TemplateRefused,
    TurnEndNotFound,
    TypedTextChanged,
)
from rolloutpool_common.rendering.proof.claims import NewMessage, TurnShape
from rolloutpool_common.rendering.sentinel import Asked, Continuation, forms
from rolloutpool_common.rendering.template import Message, Template
from rolloutpool_common.rendering.turn_end import Sampled, TurnEnd, shared_length

_EARLIER = 1_000_000
"""Marks of earlier messages are counted from here."""
_TOOL = NONCE + "t"
_SYSTEMS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Delta:
    """Holds what lies between the last sampled id and the next generation point."""

    close_ids: tuple[int, ...]
    """What ends the policy's turn, as far as the policy did not sample it."""
    glue_ids: tuple[int, ...]
    """[n]; the new messages as the template writes them, and the generation prompt."""
    use: Use | None = field(default=None, compare=False)
    """Of the short cut that made it; None where the rule did."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Holds what the template writes behind the turn although the policy has seen it before."""

    moves_system: bool = False
    moves_tools: bool = False
    repeats_system: bool = False
    """The system message stands in front of the turn as well, so the delta has it, too."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a template takes a turn with these new messages."""

    number: int
    """Which form of the turn it takes."""
    start: str
    """What it writes behind the turn, and before the first new message."""
    end: str | None
    """The part of that which ends the turn; None where it can't be told from the next header."""
    placement: Placement


@dataclass(frozen=True, slots=True)
class Cut:
    """Says where the policy's turn is over, in the text behind the sentinel."""

    close_ids: tuple[int, ...]
    """What ends the turn, as far as the policy did not sample it."""
    at: int
    """Where the new messages begin."""
    after: str
    """The control string before them; empty where other text stands there."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Holds what stands behind the sentinel."""

    text: str
    """All of it, with the marks of typed control strings."""
    before: str
    """What stands before the sentinel."""
    form: Form
    real: Asked
    """The conversation as it was rendered, without marks."""

    def shape(self, *, system: bool) -> TurnShape:
        """What a proof is about: this form of the turn and of the new messages, behind a system message or none."""
        calls = self.real.said.get("tool_calls") or []
        beside = (key for key in self.real.turn if key not in ("role", "content", "tool_calls"))
        return TurnShape(
            says=bool(self.real.turn["content"]),
            calls=len(calls),
            as_text=bool(calls) and isinstance(calls[0]["function"]["arguments"], str),
            beside=tuple(sorted(beside)),
            new=tuple(NewMessage(message["role"], tuple(sorted(message))) for message in self.real.new),
            system=system and not self.form.placement.moves_system,
            tools=bool(self.real.tools),
            spoken=sentinel.SENTINEL in text_of(self.real.said),
        )


class DeltaRule:
    """Renders deltas with one template. It keeps nothing between two calls, so threads may share it."""

    def __init__(self, template: Template, codec: Codec, end: TurnEnd) -> None:
        """`end` cuts the ends of turns."""
        self._template = template
        self._codec = codec
        self._end = end

    def find(self, continuation: Continuation) -> Behind:
        """Finds what the template writes behind the policy's turn; refuses what it does not append."""
        return _first(self._behind, forms(self._codec, continuation))

    def again(self, form: Form, continuation: Continuation) -> Behind | None:
        """As `find`, in a form that was found before: one render. None where the turn's end is another one."""
        asked = next(islice(forms(self._codec, continuation), form.number, None))
        real = self._placed(asked, form.placement)
        before, text = self._text(self._guarded(real, form.placement))
        return Behind(text, before, form, real) if text.startswith(form.start) else None

    def finish(self, found: Behind, sampled: Sampled) -> Delta:
        """Cuts off what the policy sampled, and holds the rest against a render of the conversation as it is."""
        form = found.form
        taken, over = self._end.taken(found.text, form.start, form.end, sampled, calls=found.real.calls)
        self._referee(found, taken)
        cut = self._cut(found.text, taken, over, sampled)
        return Delta(cut.close_ids, self.glue_ids(found.text, cut))

    def cut(self, text: str, start: str, end: str | None, sampled: Sampled, *, calls: bool) -> Cut:
        """Returns where `finish` would cut a text that was put together in another way, and is held against nothing."""
        taken, over = self._end.taken(text, start, end, sampled, calls=calls)
        return self._cut(text, taken, over, sampled)

    def glue_ids(self, text: str, cut: Cut) -> tuple[int, ...]:
        """The ids behind the end of the turn."""
        return tuple(self._codec.encode_rendered(text[cut.at :], after=cut.after))

    def _behind(self, number: int, asked: Asked) -> Behind:
        real = self._placed(asked, placement := self._placement(asked))
        marks = sentinel.marked(asked.new)
        before, base = self._split(replace(real, new=marks))
        _check_marks(before + base, base, marks)
        front, text = self._text(self._guarded(real, placement))
        start, end = base[: sentinel.first_marker(base)], None
        # Some templates end a turn only before another message, some write another end then.
        with suppress(RenderFailed, TurnEndNotFound):
            _, alone = self._split(replace(real, new=()), generation_prompt=False)
            end = alone if base.startswith(alone) else None
        agreed = start[: shared_length(start, text)]
        # A message may be a table instead of text, and then its beginning depends on its keys.
        if (end is None and self._codec.pattern.search(start, len(agreed))) or not agreed.startswith(end or ""):
            raise HistoryRewritten("The words of a new message change how the template ends the turn before it.")
        return Behind(text, front, Form(number, agreed, end, placement), real)

    def _placement(self, asked: Asked) -> Placement:
        """Where the template writes what the policy has seen before, in a render in which all of that is marked."""
        past = [
            {**m, "content": mark["content"]} if m["role"] in _SYSTEMS or _is_marked(m) else m
            for m, mark in zip(asked.past, sentinel.marked(asked.past, _EARLIER), strict=True)
        ]
        tools = [_named(tool, f"{_TOOL}{i}e") for i, tool in enumerate(asked.tools or ())] or None
        marked = replace(asked, past=past, new=sentinel.marked(asked.new), tools=tools)
        before, after = self._split(marked)
        _check_marks(before + after, after, marked.new)
        systems = {_EARLIER + i for i, message in enumerate(past) if message["role"] in _SYSTEMS}
        moved = {number for number in sentinel.markers_in(after) if number >= _EARLIER}
        if moved - systems:
            raise HistoryRewritten("The template writes earlier messages after the policy's turn.")
        stays = moved & set(sentinel.markers_in(before))
        moves_tools = _TOOL in after and _TOOL not in before and self._shows_tools(past, marked)
        if moves_tools and any(message["role"] in _SYSTEMS for message in asked.new):
            raise HistoryRewritten("The template moves the tools to a late system message, or repeats them there.")
        return Placement(bool(moved - stays), moves_tools, bool(stays))

    def _shows_tools(self, past: Sequence[Message], marked: Asked) -> bool:
        """Whether the first prompt shows the tools, so that the policy has seen them."""
        first = next((i for i, message in enumerate(past) if message["role"] == "assistant"), len(past))
        text = self._template.render(past[:first], tools=marked.tools, template_kwargs=marked.kwargs)
        return _TOOL in text

    def _placed(self, asked: Asked, placement: Placement) -> Asked:
        """The conversation without what the policy has seen before and the template writes once more."""
        past = asked.past
        if placement.moves_system:
            past = [message for message in past if message["role"] not in _SYSTEMS]
        return replace(asked, past=past, tools=None if placement.moves_tools else asked.tools)

    def _guarded(self, asked: Asked, placement: Placement) -> Asked:
        """The conversation with the typed control strings marked of all that may stand in the delta."""
        escaper, past = self._codec.escaper, asked.past
        if placement.repeats_system:
            past = [escaper.messages([m])[0] if m["role"] in _SYSTEMS else m for m in past]
        return replace(asked, past=past, tools=escaper.value(list(asked.tools)) if asked.tools else None)

    def _text(self, asked: Asked) -> tuple[str, str]:
        """Returns what stands before the sentinel, and what behind it, with the marks of typed control strings."""
        before = ""

        def mark(edges: bool) -> list[list[Message]]:
            # All but the new messages comes with its marks.
            new = self._codec.escaper.messages(asked.new, edges=edges)
            return [list(asked.past), [asked.said], list(new), list(asked.tools or ())]

        def write(given: list[list[Message]]) -> str:
            nonlocal before
            past, (said,), new, tools = given
            before, behind = self._split(replace(asked, past=past, said=said, new=new, tools=tools or None))
            return behind

        try:
            text = self._codec.escaper.render(mark, write, [message["content"] for message in asked.new])
        except TypedTextChanged as changed:
            past, _, new, tools = mark(True)
            if marked_strings([past, [_without_call(message) for message in new], tools]):
                raise
            # Nothing is marked but ids and names of calls, and those were sampled.
            raise ContentUnsafe(changed.message) from None
        if sentinel.NAMELESS in text:
            raise HistoryRewritten("The template prints the tool's name, and a tool message has no `name`. Send one.")
        return without_marks(before), text

    def _split(self, asked: Asked, *, generation_prompt: bool = True) -> tuple[str, str]:
        """Returns what the template writes before the sentinel, and after it."""
        whole = self._render(asked, asked.said, generation_prompt=generation_prompt)
        after = sentinel.after_sentinel(whole)
        if after is None:
            what = "calls" if asked.calls else "what the policy says"
            raise TurnEndNotFound(f"The template does not print {what}, so nothing tells where the policy's turn ends.")
        return whole[: len(whole) - len(after) - len(sentinel.SENTINEL)], after

    def _render(self, asked: Asked, turn: Message, *, generation_prompt: bool = True) -> str:
        return self._template.render(
            [*asked.past, turn, *asked.new],
            tools=asked.tools,
            template_kwargs=asked.kwargs,
            generation_prompt=generation_prompt,
        )

    def _cut(self, text: str, taken: int, over: int, sampled: Sampled) -> Cut:
        # Where nothing was sampled, the text continues a prompt, and that ends as this text does.
        before = self._last_control(text) if not sampled.any else "" if sampled.space else sampled.control
        if over <= taken:
            return Cut((), taken, before)
        close = self._codec.encode_rendered(text[taken:over], after=before)
        return Cut(tuple(close), over, self._last_control(text[:over]))

    def _referee(self, found: Behind, taken: int) -> None:
        """Holds the delta's text against a render of the conversation as it is."""
        real, delta = found.real, without_marks(found.text[taken:])
        try:
            whole = self._render(real, real.turn)
        except RenderFailed:
            return  # The policy sampled what is no call, such as arguments that are no JSON; nothing can be compared.
        if not whole.endswith(delta):
            raise HistoryRewritten("What the policy's turn says changes what the template writes behind it.")
        if taken or real.turn.get("tool_calls"):
            return
        # The turn was not closed, so it must also have begun with the same words. Templates trim what turns say.
        before, said = whole[: len(whole) - len(delta)], text_of(real.turn)
        space = said[len(said.rstrip()) :]
        if before.rstrip() != found.before.rstrip():
            raise HistoryRewritten("What the policy's turn says changes what the template writes behind it.")
        if space and delta[:1].isspace() and not before.endswith(space):
            raise TurnEndNotFound("The turn was cut in white space, and its end begins with some: nothing tells whose.")

    def _last_control(self, text: str) -> str:
        found = [m for m in self._codec.pattern.finditer(text) if m.end() == len(text)]
        return found[-1].group() if found else ""


def _first(attempt: Callable[[int, Asked], Behind], found: Iterable[Asked]) -> Behind:
    """The first form that is not refused; else the refusal that says most."""
    reasons: list[TemplateRefused] = []
    for number, asked in enumerate(found):
        try:
            return attempt(number, asked)
        except TemplateRefused as refused:
            reasons.append(refused)
    # A template that moves messages is the reason, even where another form of the turn isn't printed at all.
    for kind in (HistoryRewritten, RenderFailed, TemplateRefused):
        for refusal in reasons:
            if isinstance(refusal, kind):
                raise refusal
    raise TurnEndNotFound()


def _check_marks(whole: str, after: str, marks: Sequence[Message]) -> None:
    """Raises HistoryRewritten unless each of the new messages is written once, in order, after the turn."""
    found = [number for number in sentinel.markers_in(whole) if number < _EARLIER]
    behind = [number for number in sentinel.markers_in(after) if number < _EARLIER]
    if found == behind == list(range(len(marks))):
        return
    left_out = sorted({marks[i]["role"] for i in range(len(marks)) if i not in found})
    moved = sorted({marks[i]["role"] for i in found if i not in behind})
    did = (
        f"leaves out {' and '.join(left_out)} messages"
        if left_out
        else f"writes {' and '.join(moved)} messages in front of the policy's turn instead of behind it"
        if moved
        else "repeats or reorders the new messages"
    )
    raise HistoryRewritten(f"The template {did}. What it does not append cannot be given exact token ids.")


def _is_marked(message: Message) -> bool:
    """Whether an earlier message gets a mark: templates look at what turns say, and at whether anything is said."""
    return bool(message["content"]) and message["role"] != "assistant"


def _named(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = tool.get("function")
    return {**tool, "function": {**function, "name": name}} if isinstance(function, Mapping) else {**tool, "name": name}


def _without_call(message: Message) -> dict[str, Any]:
    """A message without what it repeats of the policy's call."""
    if message["role"] not in sentinel.RESULT_ROLES:
        return dict(message)
    return {key: value for key, value in message.items() if key not in ("name", "tool_call_id")}
