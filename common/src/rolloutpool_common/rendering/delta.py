"""Renders only what is new, so that history is never tokenised again.

1. A **sentinel turn** stands for the policy's last turn (`sentinel`). After it come the real new messages, their
   typed control strings marked.
2. Before it stands the smallest context that the shape's probe has shown to be enough (`shape`): one dummy user
   message, the real system message, or the real history.
3. All that the template writes after the sentinel is the end of the turn, the new messages and the generation prompt.
   What the policy sampled of the end itself is cut off (`turn_end`); the rest is the **delta**, and only that is
   tokenised.

Example, on ChatML. The render ends with `SENTINEL<|im_end|>⏎<|im_start|>tool⏎38<|im_end|>⏎<|im_start|>assistant⏎`. The
policy sampled `… is 38<|im_end|>`, so the delta is all that follows the sentinel's own `<|im_end|>`.

A probe tries invented conversations, so its answer is checked on real ones: if history is short, a shape's first,
second, fourth, eighth … delta is also rendered after the real history. If the two differ, the shape depends on history
from then on. A shape that depends on history without being given one is refused.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from cachetools import LRUCache

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.contexts import USER
from rolloutpool_common.rendering.control_tokens import is_marked
from rolloutpool_common.rendering.errors import (
    AssistantAppended,
    ContentUnsafe,
    HistoryRewritten,
    RenderFailed,
    TemplateRefused,
    TurnEndNotFound,
    TypedTextChanged,
)
from rolloutpool_common.rendering.marked_render import render_marked
from rolloutpool_common.rendering.shape import Dependence, Prober, Shape
from rolloutpool_common.rendering.template import SAMPLE_TOOL, Message, Template, normalise
from rolloutpool_common.rendering.turn_end import TurnEnd, sampled_tail

__all__ = ["Delta", "DeltaRenderer", "find_close"]

_SHAPES = 512
"""Verdicts kept; a shape is some hundred bytes."""
CHECKED_CHARACTERS = 16_000
CHECKED_MESSAGES = 64
"""A history up to here is short enough to check a shape against it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What lies between the last sampled id and the next generation point."""

    close_ids: tuple[int, ...]
    """What ends the policy's turn, as far as the policy did not sample it."""
    glue_ids: tuple[int, ...]
    """[n]; the new messages as the template writes them, and the generation prompt."""


class _Known:
    """A shape with what use has taught about it."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.uses = 0

    def due(self) -> bool:
        """Whether this use is the first, second, fourth, eighth, and so on."""
        self.uses += 1
        return self.uses & (self.uses - 1) == 0


class DeltaRenderer:
    """Renders deltas with one template. Thread-safe."""

    def __init__(self, template: Template, codec: Codec, stops: frozenset[str]) -> None:
        """`stops` are the control strings that policies of this family stop at."""
        self._prober = Prober(template)
        self._template = template
        self._codec = codec
        self._end = TurnEnd(codec.pattern, stops, _answer_end(template) or "")
        self._shapes: LRUCache[object, _Known | TemplateRefused] = LRUCache(_SHAPES)
        # cachetools is not thread-safe: even a lookup reorders the cache.
        self._lock = Lock()
        self.reads_history = False
        """Whether a shape that was found so far depends on history."""

    def render(
        self,
        new_messages: Sequence[Message],
        sampled: Sequence[int],
        *,
        history: Sequence[Message] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Delta:
        """Renders the delta of messages after a turn of the policy.

        Args:
            new_messages: What follows the turn; no assistant messages.
            sampled: The last ids of the turn, `SAMPLED_TAIL` of them or all; empty where the policy sampled nothing.
            history: All messages up to the turn, that turn included; None where they are not known.
            tools: What the policy was shown that it may call.
            template_kwargs: Further variables of the template.

        Returns:
            The ids that end the turn, and those of the new messages with the generation prompt.

        Raises:
            TemplateRefused: The ids cannot be exact with this template.
        """
        kwargs = dict(template_kwargs or {})
        new, calls, known = self._look_up(new_messages, history, kwargs, tools)
        shape = known.shape
        # Tools that deltas show are typed text as well.
        shown = self._codec.escaper.value(list(tools or ())) if shape.reads_tools else None
        turn = sentinel.turn(
            # Templates print ids and names of calls after the sentinel too, and those may be anything that was sampled.
            [(self._marked(call_id), self._marked(name)) for call_id, name in calls],
            arguments_as_text=shape.arguments_as_text,
            silent=shape.silent,
            beside=shape.beside,
        )
        context = self._context(shape, history, tools)
        text = self._text(context, turn, new, kwargs, shown)
        if shape.depends_on is not Dependence.HISTORY and history and known.due() and _is_short(history):
            # A history that cannot be rendered, such as one with calls that are no calls, proves nothing.
            with suppress(RenderFailed):
                whole = self._context(replace(shape, depends_on=Dependence.HISTORY), history, tools)
                found = self._text(whole, turn, new, kwargs, shown)
                if found != text:
                    known.shape = replace(shape, depends_on=Dependence.HISTORY)
                    self.reads_history = True
                    context, text = whole, found
        start, end = shape.start, shape.end
        if not text.startswith(start):
            # Something printed there is this conversation's own, such as an id of a call.
            start, end = self._prober.start_and_end(context, turn, new, kwargs, shown)
        if sentinel.NAMELESS in text:
            raise HistoryRewritten("The template prints the tool's name, and a tool message has no `name`. Send one.")
        return self._delta(text, start, end, sampled, calls=bool(calls))

    def shape(
        self,
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Shape:
        """What a delta of these messages depends on; arguments and errors as of `render`."""
        return self._look_up(new_messages, history, dict(template_kwargs or {}), tools)[2].shape

    def _look_up(
        self,
        new_messages: Sequence[Message],
        history: Sequence[Message] | None,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[list[dict[str, Any]], list[tuple[str, str]], _Known]:
        """The new messages in normal form, the calls that the turn before them makes, and what is known of them."""
        new = [_identified(message, i) for i, message in enumerate(self._template.normalise(new_messages, tools))]
        _check(new)
        # Only the turn itself; otherwise each delta would cost as much as its history is long.
        past = normalise(history[-1:]) if history else []
        calls = sentinel.calls_of(past, new)
        silent = bool(calls and past and not text_of(past[-1]))
        # A template that never names a key cannot look at it.
        beside = tuple(key for key in sentinel.texts_beside(past) if key in self._template.source)
        return new, calls, self._known(new, calls, silent, kwargs, tools, beside)

    def _marked(self, text: str) -> str:
        return text if text == sentinel.NAMELESS else str(self._codec.escaper.value(text))

    def reads_tools(self, tools: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]) -> bool:
        """Tells whether a tool's result or a user's message is written otherwise where there are tools.

        Args:
            tools: What the policy is shown that it may call.
            kwargs: Further variables of the template.

        Returns:
            The answer; True where the template refuses one of them.
        """
        result = {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "r"}
        shapes: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [(result, [("call00000", "f")]), (USER, [])]
        try:
            return any(self._known([new], calls, bool(calls), kwargs, tools).shape.reads_tools for new, calls in shapes)
        except TemplateRefused:
            return True

    def _delta(self, text: str, start: str, end: str | None, sampled: Sequence[int], *, calls: bool) -> Delta:
        tail = sampled_tail(sampled, self._codec)
        taken, over = self._end.taken(text, start, end, tail, calls=calls)
        before = "" if tail.space else tail.control
        close: list[int] = []
        if over > taken:
            close = self._codec.encode_rendered(text[taken:over], after=before, inside=bool(sampled))
            before = self._last_control(text[:over])
        glue = self._codec.encode_rendered(text[max(taken, over) :], after=before, inside=bool(sampled))
        return Delta(tuple(close), tuple(glue))

    def _last_control(self, text: str) -> str:
        found = [m for m in self._codec.pattern.finditer(text) if m.end() == len(text)]
        return found[-1].group() if found else ""

    def _text(
        self,
        context: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        escaper = self._codec.escaper

        def mark(edges: bool) -> list[list[Message]]:
            # All but the new messages comes with its marks.
            return [list(context), [turn], list(escaper.messages(new, edges=edges)), list(tools or ())]

        def write(given: list[list[Message]]) -> str:
            past, (said,), following, shown = given
            _, found = self._prober.render(past, said, following, kwargs=kwargs, tools=shown or None)
            if found is None:
                raise TurnEndNotFound("The template drops the policy's turn for these messages, but not for others.")
            return found

        try:
            return render_marked(self._codec, mark, write, [message["content"] for message in new])
        except TypedTextChanged as changed:
            past, _, following, shown = mark(True)
            if is_marked([past, [_without_call(message) for message in following], shown]):
                raise
            # Nothing is marked but ids and names of calls, and those were sampled.
            raise ContentUnsafe(changed.message) from None

    def _context(
        self, shape: Shape, history: Sequence[Message] | None, tools: Sequence[Mapping[str, Any]] | None
    ) -> list[Message]:
        if shape.depends_on is Dependence.NOTHING:
            return [USER]
        if history is None:
            raise HistoryRewritten(
                f"What the template writes here depends on the {shape.depends_on}, which is not given."
            )
        first = _systems(history)
        systems = self._template.normalise(history[:first], tools)
        if shape.repeats_system:
            # What it says is in the delta then, so control strings that were typed there are marked.
            systems = self._codec.escaper.messages(systems)
        if shape.depends_on is Dependence.SYSTEM:
            return [*systems, USER]
        past: list[Message] = [
            *([] if shape.moves_system else systems),
            *self._template.normalise(history[first:], tools),
        ]
        # The sentinel turn stands in its place.
        if past and past[-1]["role"] == "assistant":
            past.pop()
        return [_with_text_arguments(m) for m in past] if shape.arguments_as_text else past

    def _known(
        self,
        new: Sequence[dict[str, Any]],
        calls: Sequence[tuple[str, str]],
        silent: bool,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        beside: tuple[str, ...] = (),
    ) -> _Known:
        """The cached verdict. It is about a shape, never about values: the probe's own ids and names are harmless."""
        signature = tuple((m["role"], sentinel.content_kind(m["content"]), *sorted(m)) for m in new)
        named = tuple(name != sentinel.NAMELESS for _, name in calls)
        given = json.dumps([kwargs, list(tools or ())], sort_keys=True, default=repr) if kwargs or tools else ""
        key = signature, named, silent, given, beside
        with self._lock:
            verdict = self._shapes.get(key)
        if verdict is None:
            # Outside the lock, because a probe renders dozens of times. Two threads may find the same verdict at once.
            ids = [f"call{i:05d}" for i in range(max(len(calls), len(new)))]
            harmless = [(ids[i], name if name == sentinel.NAMELESS else "f") for i, (_, name) in enumerate(calls)]
            try:
                answering = _answering(new, ids)
                verdict = _Known(self._prober.probe(answering, harmless, silent, kwargs, tools or None, beside))
            except TemplateRefused as refusal:
                verdict = refusal
            else:
                self.reads_history = self.reads_history or verdict.shape.depends_on is Dependence.HISTORY
            with self._lock:
                self._shapes[key] = verdict
        # A new one each time: raising the cached one again would make its traceback longer with each raise.
        if isinstance(verdict, TemplateRefused):
            raise type(verdict)(verdict.message)
        return verdict


def find_close(template: Template, codec: Codec, stops: frozenset[str]) -> str | None:
    """The control string that ends an answer; None if there is none.

    Where an end has several, a known stop; where none of them is one, the last.
    """
    found = [match.group() for match in codec.pattern.finditer(_answer_end(template) or "")]
    return next((text for text in found if text in stops), found[-1] if found else None)


def _answer_end(template: Template) -> str | None:
    """What the template writes after an answer: before a user message, or at the end of the conversation."""
    prober = Prober(template)
    turn = sentinel.turn([])
    # Some templates can be rendered with tools only.
    for tools in (None, [SAMPLE_TOOL]):
        with suppress(TemplateRefused):
            _, end = prober.start_and_end([USER], turn, [USER], {}, tools)
            if end is not None:
                return end
        with suppress(TemplateRefused):
            return prober.render([USER], turn, [], kwargs={}, tools=tools, generation_prompt=False)[1]
    return None


def _answering(new: Sequence[dict[str, Any]], ids: Sequence[str]) -> list[dict[str, Any]]:
    """The messages with ids and names that every template takes."""
    found, at = [], 0
    for message in new:
        if message["role"] in sentinel.RESULT_ROLES:
            changed = {**message}
            if "tool_call_id" in message:
                changed["tool_call_id"] = ids[at]
            if "name" in message:
                changed["name"] = "f"
            found.append(changed)
            at += 1
        else:
            found.append(message)
    return found


def _identified(message: dict[str, Any], index: int) -> dict[str, Any]:
    """Templates that print or check call ids want nine letters or digits."""
    if message.get("role") == "tool" and "tool_call_id" not in message:
        return {**message, "tool_call_id": f"call{index:05d}"}
    return message


def _without_call(message: Message) -> dict[str, Any]:
    """A message without what it repeats of the policy's call."""
    if message["role"] not in sentinel.RESULT_ROLES:
        return dict(message)
    return {key: value for key, value in message.items() if key not in ("name", "tool_call_id")}


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise TemplateRefused("There are no new messages to append.")
    if any(message.get("role") == "assistant" for message in messages):
        raise AssistantAppended()


def _systems(history: Sequence[Message]) -> int:
    """How many system messages a history begins with."""
    return next((i for i, m in enumerate(history) if m["role"] not in ("system", "developer")), len(history))


def _is_short(history: Sequence[Message]) -> bool:
    if len(history) > CHECKED_MESSAGES:
        return False
    return sum(len(text_of(message)) for message in history) <= CHECKED_CHARACTERS


def _with_text_arguments(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    changed = []
    for call in calls:
        arguments = call["function"].get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        changed.append({**call, "function": {**call["function"], "arguments": text}})
    return {**message, "tool_calls": changed}
