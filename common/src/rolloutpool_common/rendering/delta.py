"""Renders only the messages that are new, so that history is never tokenised again.

What the policy sampled is kept as ids; rendering its text again could split it differently. So only the *delta* is
rendered: what stands between the last sampled id and the point where the policy speaks next.

1. **Dummy.** The new messages are put after a dummy conversation of two short turns, in which the policy says a
   sentinel (`dummy_conversation.py`). It has the same size at any length of the real history.
2. **Render.** The chat template renders dummy and new messages as one conversation.
3. **Cut.** The text is cut where the policy's turn ends (`turn_ends.py`). What follows is the delta. Nothing is
   subtracted, so it does not matter how the template writes the dummy.
4. **Encode.** The delta is encoded as the continuation of the token that ends the turn.
5. **Close.** If the policy was cut by length and did not sample that token, one is put in front.

For example, the policy said "4", and a user asks "and 3+3?". ChatML renders

    …<|im_start|>assistant\nSENTINEL<|im_end|>\n<|im_start|>user\nand 3+3?<|im_end|>\n<|im_start|>assistant\n
                                              └── the delta

This is exact only if the template appends: some move, merge or drop messages instead. That is probed once per *shape*
(roles, keys and kinds of content of the new messages), with numbered markers as content. Each marker must stand after
the cut, once and in order; otherwise the template is refused for this shape, and so is every rollout that needs it.

Not covered: a template whose delta depends on what the history contains. The probe cannot see that.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from cachetools import LRUCache

from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import split_marks
from rolloutpool_common.rendering.dummy_conversation import (
    NAMELESS,
    SENTINEL,
    DummyForm,
    forms_for,
    has_results,
    markers_in,
    with_markers,
)
from rolloutpool_common.rendering.errors import (
    AssistantAppended,
    HistoryRewritten,
    RenderFailed,
    TemplateRefused,
    TurnEndNotFound,
)
from rolloutpool_common.rendering.template import Message, Template, normalise
from rolloutpool_common.rendering.turn_ends import DummyRender, TurnEnd

__all__ = ["Delta", "DeltaRenderer"]

_SHAPES = 512
"""Shapes remembered per template; one takes a few hundred bytes."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What lies between the last sampled id and the next generation point."""

    close_ids: tuple[int, ...]
    """The token that closes the policy's turn, where the policy did not sample it: none or one."""
    glue_ids: tuple[int, ...]
    """[n]; the new messages as the template writes them, and the generation prompt."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a template continues a turn with messages of certain roles: what the probe found out."""

    form: DummyForm
    end: TurnEnd


class DeltaRenderer:
    """Renders deltas with one template. Thread-safe."""

    def __init__(self, template: Template, codec: Codec, close: str | None, stop_ids: frozenset[int]) -> None:
        """Prepares a renderer; templates are probed when they are first used.

        Args:
            template: Renders the conversations.
            codec: Encodes them.
            close: The control string after an assistant message, if the template writes one.
            stop_ids: All ids that end a turn when the policy samples them.
        """
        self._template = template
        self._codec = codec
        self._control = codec.escaper.pattern
        self._close = close
        self._stop_ids = stop_ids
        self._shapes: LRUCache[tuple[object, str], _Shape | TemplateRefused] = LRUCache(_SHAPES)
        # cachetools is not thread-safe: even a lookup reorders the cache.
        self._lock = Lock()

    def render(
        self, new_messages: Sequence[Message], last_sampled_id: int | None, template_kwargs: Mapping[str, Any] | None
    ) -> Delta:
        """Renders what the messages add to a turn.

        Args:
            new_messages: What follows the turn; no assistant messages.
            last_sampled_id: The id that the turn ended with; None where the policy sampled nothing.
            template_kwargs: For the template.

        Raises:
            TemplateRefused: One of its kinds: what the template writes is no exact continuation.
        """
        kwargs = dict(template_kwargs or {})
        messages = [_identified(message, i) for i, message in enumerate(normalise(new_messages))]
        _check(messages)
        shape = self._shape(messages, kwargs)
        glue = self._codec.encode_rendered(self._escaped_text(shape, messages, kwargs), after=shape.end.close)
        return Delta(*shape.end.append(glue, last_sampled_id, self._codec.control_ids, self._stop_ids))

    def _escaped_text(self, shape: _Shape, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
        """The delta's text with typed control strings marked; see `control_tokens` for the edges of content."""
        escaper = self._codec.escaper
        text = self._text(shape, escaper.messages(messages), kwargs)
        if not escaper.has_edges([message["content"] for message in messages]):
            return text
        marked = self._text(shape, escaper.messages(messages, edges=True), kwargs)
        same = self._codec.count_control(split_marks(text)) == self._codec.count_control(split_marks(marked))
        return text if same else marked

    def _text(self, shape: _Shape, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
        """Steps 1 to 3: the text after the cut."""
        text = self._template.render([*shape.form.conversation(messages), *messages], template_kwargs=kwargs)
        cut = self._cut(text, shape.end)
        if cut is None:
            raise TurnEndNotFound("The template drops the policy's turn for these messages, but not for others.")
        if NAMELESS in text[cut:]:
            raise HistoryRewritten("The template prints the tool's name, and a tool message has no `name`. Send one.")
        return text[cut:]

    def _cut(self, text: str, end: TurnEnd) -> int | None:
        """Where the delta begins; the last sentinel counts, because a call's arguments contain it as well."""
        start = text.rfind(SENTINEL)
        return None if start < 0 else end.cut(text, start + len(SENTINEL), self._control)

    def _shape(self, messages: Sequence[dict[str, Any]], kwargs: Mapping[str, Any]) -> _Shape:
        """Probes a shape once; a template that refuses a shape refuses it every time."""
        signature = tuple((m["role"], _content_kind(m["content"]), *sorted(m)) for m in messages)
        key = signature, json.dumps(kwargs, sort_keys=True, default=repr) if kwargs else ""
        with self._lock:
            found = self._shapes.get(key)
        if found is None:
            try:
                found = self._probe(messages, kwargs)
            except TemplateRefused as refusal:
                found = refusal
            with self._lock:
                self._shapes[key] = found
        if isinstance(found, TemplateRefused):
            # A new error each time: one that is raised again would collect the tracebacks of all rollouts.
            raise type(found)(found.message)
        return found

    def _probe(self, messages: Sequence[dict[str, Any]], kwargs: Mapping[str, Any]) -> _Shape:
        """Tries the forms of the dummy and the rules for the turn's end until one keeps all markers in order."""
        probes = with_markers(messages)
        refusal: TemplateRefused | None = None
        for form in forms_for(probes):
            dummy = form.conversation(probes)
            try:
                text = self._template.render(dummy + probes, template_kwargs=kwargs)
            except TemplateRefused as error:
                refusal = refusal or error
                continue
            render = DummyRender(text, self._alone(dummy, kwargs))
            for end in render.ends(self._close, self._control, has_results=has_results(probes)):
                try:
                    _check_markers(text, self._cut(text, end), probes)
                except TemplateRefused as error:
                    refusal = refusal or error
                else:
                    return _Shape(form, end)
        raise refusal or TurnEndNotFound()

    def _alone(self, dummy: Sequence[Message], kwargs: Mapping[str, Any]) -> str | None:
        """What follows the sentinel in the dummy without new messages; None where the template refuses that."""
        try:
            text = self._template.render(dummy, template_kwargs=kwargs, generation_prompt=False)
        except RenderFailed:
            return None
        _, sentinel, rest = text.rpartition(SENTINEL)
        return rest if sentinel else None


def _check_markers(text: str, cut: int | None, probes: Sequence[Message]) -> None:
    """Raises HistoryRewritten unless each marker stands after the cut, once and in order."""
    found, appended = markers_in(text), markers_in(text[cut or 0 :])
    if cut is not None and found == appended == list(range(len(probes))):
        return
    left_out = sorted({probes[i]["role"] for i in range(len(probes)) if i not in found})
    moved = sorted({probes[i]["role"] for i in found if i not in appended})
    did = (
        f"leaves out {' and '.join(left_out)} messages"
        if left_out
        else f"writes {' and '.join(moved)} messages in front of the policy's turn instead of after it"
        if moved
        else "repeats or reorders the new messages"
    )
    raise HistoryRewritten(f"The template {did}. What it does not append cannot be given exact token ids.")


def _identified(message: dict[str, Any], index: int) -> dict[str, Any]:
    """Gives a tool result a call id where it has none: templates that check ids want nine letters or digits."""
    if message.get("role") == "tool" and "tool_call_id" not in message:
        return {**message, "tool_call_id": f"call{index:05d}"}
    return message


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise TemplateRefused("There are no new messages to append.")
    if any(message.get("role") == "assistant" for message in messages):
        raise AssistantAppended()


def _content_kind(content: Any) -> str:
    if isinstance(content, list | tuple):
        return "list:" + ",".join(str(part.get("type")) if isinstance(part, Mapping) else "" for part in content)
    return type(content).__name__
