"""Renders only what is new, so that history is never tokenised again.

The new messages are rendered behind a dummy conversation of constant size whose assistant turn says a sentinel. What
the template writes behind the end of that turn is the delta. Nothing is subtracted, so it does not matter what the
template does to the dummy. That it does append is probed once per shape of the new messages, with numbered markers
as content: each must lie behind the cut, once and in order, else the template hoists, moves or drops, and is refused.
Cost depends on the new messages alone.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from cachetools import LRUCache

from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import NONCE, split_marks
from rolloutpool_common.rendering.errors import (
    AssistantAppended,
    HistoryRewritten,
    RenderFailed,
    TemplateRefused,
    TurnEndNotFound,
)
from rolloutpool_common.rendering.template import Message, Template, normalise

__all__ = ["Delta", "DeltaRenderer", "find_close"]

_SENTINEL = NONCE + "s"
_NAMELESS = NONCE + "n"
_RESULT_ROLES = ("tool", "function")
_SHAPES = 512  # verdicts kept; a shape is a few hundred bytes


@dataclass(frozen=True, slots=True)
class Delta:
    """What lies between the last sampled id and the next generation point."""

    close_ids: tuple[int, ...]
    """The token that closes the policy's turn, where the policy did not sample it: none or one."""
    glue_ids: tuple[int, ...]
    """[n]; the new messages as the template writes them, and the generation prompt."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a template continues a turn with messages of certain roles."""

    arguments_as_text: bool
    silent: bool
    """Whether the dummy's turn makes its calls without saying anything."""
    close: str
    """The control string that ends the policy's turn; empty where only the next header does."""
    skip: int = 0
    """With no close string: how many characters behind the sentinel still belong to the policy's turn."""
    rest: tuple[str, ...] = ()
    """Control strings of the policy's own turn right behind the close string."""
    header_stops: bool = False
    """Whether the policy may stop by sampling the control token that starts the delta."""

    def cut(self, text: str, codec: Codec) -> int | None:
        """Offset of the delta in a render of the dummy conversation."""
        start = text.rfind(_SENTINEL)
        if start < 0:
            return None
        start += len(_SENTINEL)
        return _behind(text, start, self.close, codec) if self.close else start + self.skip


class DeltaRenderer:
    """Renders deltas with one template. Thread-safe."""

    def __init__(self, template: Template, codec: Codec, close: str | None, stop_ids: frozenset[int]) -> None:
        """`close` is the control string behind an assistant message, `stop_ids` all ids that end a turn."""
        self._template = template
        self._codec = codec
        self._close = close
        self._stop_ids = stop_ids
        self._shapes: LRUCache[tuple[object, str], _Shape | TemplateRefused] = LRUCache(_SHAPES)
        # cachetools is not thread-safe: even a lookup reorders the cache.
        self._lock = Lock()

    def render(
        self, new_messages: Sequence[Message], last_sampled_id: int | None, template_kwargs: Mapping[str, Any] | None
    ) -> Delta:
        """The delta of the messages behind a turn that ended with `last_sampled_id`. Raises TemplateRefused."""
        kwargs = dict(template_kwargs or {})
        messages = [_identified(message, i) for i, message in enumerate(normalise(new_messages))]
        _check(messages)
        shape = self._shape(messages, kwargs)
        text = self._text(shape, self._codec.guard.messages(messages), kwargs)
        if self._codec.guard.has_edges([m["content"] for m in messages]):
            marked = self._text(shape, self._codec.guard.messages(messages, edges=True), kwargs)
            pieces, safe_pieces = split_marks(text), split_marks(marked)
            if self._codec.count_control(pieces) != self._codec.count_control(safe_pieces):
                text = marked
        return self._join(shape, self._codec.encode_rendered(text, after=shape.close), last_sampled_id)

    def _join(self, shape: _Shape, glue: list[int], last: int | None) -> Delta:
        ids = self._codec.control_ids
        rest = [ids[text] for text in shape.rest]
        if last in rest:  # the policy sampled further into its own end than the cut
            return Delta((), tuple(glue[rest.index(last) + 1 :]))
        if shape.header_stops and glue[:1] == [last] and last in ids.values():
            return Delta((), tuple(glue[1:]))
        closed = not shape.close or last == ids[shape.close] or last in self._stop_ids
        return Delta(() if closed else (ids[shape.close],), tuple(glue))

    def _text(self, shape: _Shape, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
        text = self._template.render(
            _dummy(messages, shape.arguments_as_text, shape.silent) + list(messages), template_kwargs=kwargs
        )
        cut = shape.cut(text, self._codec)
        if cut is None:
            raise TurnEndNotFound("The template drops the policy's turn for these messages, but not for others.")
        if _NAMELESS in text[cut:]:
            raise HistoryRewritten("The template prints the tool's name, and a tool message has no `name`. Send one.")
        return text[cut:]

    def _shape(self, messages: Sequence[dict[str, Any]], kwargs: Mapping[str, Any]) -> _Shape:
        """The cached verdict; a template that refuses a shape refuses it every time."""
        signature = tuple((m["role"], _content_kind(m["content"]), *sorted(m)) for m in messages)
        key = signature, json.dumps(kwargs, sort_keys=True, default=repr) if kwargs else ""
        with self._lock:
            verdict = self._shapes.get(key)
        if verdict is None:
            try:
                verdict = self._probe(messages, kwargs)
            except TemplateRefused as refusal:
                verdict = refusal
            with self._lock:
                self._shapes[key] = verdict
        if isinstance(verdict, TemplateRefused):
            raise type(verdict)(verdict.message)
        return verdict

    def _probe(self, messages: Sequence[dict[str, Any]], kwargs: Mapping[str, Any]) -> _Shape:
        probes = [{**m, "content": _replaced(m["content"], f"{NONCE}m{i}e")} for i, m in enumerate(messages)]
        has_calls = any(m["role"] in _RESULT_ROLES for m in messages)
        refusal: TemplateRefused | None = None
        # Said last: a template may write what a turn says behind the results of its calls.
        forms = [(False, False), (True, False), (False, True), (True, True)] if has_calls else [(False, False)]
        for as_text, silent in forms:
            dummy = _dummy(probes, as_text, silent)
            try:
                text = self._template.render(dummy + probes, template_kwargs=kwargs)
            except TemplateRefused as error:
                refusal = refusal or error
                continue
            for shape in self._ends(text, self._alone(dummy, kwargs), (as_text, silent), has_calls):
                try:
                    self._check_markers(text, shape.cut(text, self._codec), probes)
                except TemplateRefused as error:
                    refusal = refusal or error
                else:
                    return shape
        raise refusal or TurnEndNotFound()

    def _alone(self, dummy: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
        """The dummy without new messages; empty where the template refuses a conversation that ends like this."""
        try:
            return self._template.render(dummy, template_kwargs=kwargs, generation_prompt=False)
        except RenderFailed:
            return ""

    def _ends(self, text: str, alone: str, form: tuple[bool, bool], has_calls: bool) -> Iterator[_Shape]:
        """How the policy's turn may end in this render, in order of trust."""
        if _SENTINEL not in text:
            return
        pattern = self._codec.guard.pattern
        start = text.rfind(_SENTINEL) + len(_SENTINEL)
        tail = alone[alone.rfind(_SENTINEL) + len(_SENTINEL) :] if _SENTINEL in alone else None
        if self._close and (end := _behind(text, start, self._close, self._codec)) is not None:
            end_of_tail = _behind(tail, 0, self._close, self._codec) if tail else None
            rest = _run(pattern, tail, end_of_tail) if tail and end_of_tail else ()
            yield _Shape(*form, self._close, rest=rest if text.startswith("".join(rest), end) else ())
        # No usual end: the turn alone shows how this one ends, if it looks the same in front of other messages.
        if tail is not None and text.startswith(tail, start):
            ends = [match.group() for match in pattern.finditer(tail)]
            if not ends or not self._close:  # where answers have no close token, markup that ends a call is none
                yield _Shape(*form, "", skip=len(tail), header_stops=True)
            elif ends.count(ends[-1]) == 1:
                yield _Shape(*form, ends[-1], header_stops=True)
        if not has_calls and (first := pattern.match(text, start)):
            yield _Shape(*form, first.group())

    def _check_markers(self, text: str, cut: int | None, probes: Sequence[Message]) -> None:
        found = [int(number) for number in re.findall(f"{NONCE}m(\\d+)e", text)]
        behind = [int(number) for number in re.findall(f"{NONCE}m(\\d+)e", text[cut or 0 :])]
        if cut is not None and found == behind == list(range(len(probes))):
            return
        left_out = sorted({probes[i]["role"] for i in range(len(probes)) if i not in found})
        moved = sorted({probes[i]["role"] for i in found if i not in behind})
        did = (
            f"leaves out {_joined(left_out)} messages"
            if left_out
            else f"writes {_joined(moved)} messages in front of the policy's turn instead of behind it"
            if moved
            else "repeats or reorders the new messages"
        )
        raise HistoryRewritten(f"The template {did}. What it does not append cannot be given exact token ids.")


def find_close(template: Template, codec: Codec) -> str | None:
    """The control string that the template writes behind an assistant message; None if there is none."""
    try:
        text = template.render(_dummy([]), generation_prompt=False)
    except RenderFailed:
        return None
    start = text.rfind(_SENTINEL)
    found = codec.first_control(text[start:]) if start >= 0 else None
    return found[0] if found else None


def _dummy(new: Sequence[Message], arguments_as_text: bool = False, silent: bool = False) -> list[dict[str, Any]]:
    """A user turn and a policy turn; the latter makes a call for each tool result that follows."""
    arguments: Any = {_SENTINEL: _SENTINEL}
    if arguments_as_text:
        arguments = json.dumps(arguments)
    assistant: dict[str, Any] = {"role": "assistant", "content": "" if silent else _SENTINEL}
    calls = [
        {
            "id": message.get("tool_call_id", ""),
            "type": "function",
            "function": {"name": message.get("name", _NAMELESS), "arguments": arguments},
        }
        for message in new
        if message["role"] in _RESULT_ROLES
    ]
    if calls:
        assistant["tool_calls"] = calls
    return [{"role": "user", "content": "x"}, assistant]


def _identified(message: dict[str, Any], index: int) -> dict[str, Any]:
    """Templates that print or check call ids want nine letters or digits."""
    if message.get("role") == "tool" and "tool_call_id" not in message:
        return {**message, "tool_call_id": f"call{index:05d}"}
    return message


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise TemplateRefused("There are no new messages to append.")
    if any(message.get("role") == "assistant" for message in messages):
        raise AssistantAppended()


def _behind(text: str, start: int, close: str, codec: Codec) -> int | None:
    return next((m.end() for m in codec.guard.pattern.finditer(text, start) if m.group() == close), None)


def _run(pattern: re.Pattern[str], text: str, start: int) -> tuple[str, ...]:
    """The control strings that follow each other from `start` on."""
    found = []
    while match := pattern.match(text, start):
        found.append(match.group())
        start = match.end()
    return tuple(found)


def _joined(roles: Sequence[str]) -> str:
    return " and ".join(roles)


def _content_kind(content: Any) -> str:
    if isinstance(content, list | tuple):
        return "list:" + ",".join(str(part.get("type")) if isinstance(part, Mapping) else "" for part in content)
    return type(content).__name__


def _replaced(content: Any, marker: str) -> Any:
    """Content of the same shape that says the marker once."""
    if isinstance(content, Mapping):
        return {"r": marker}
    if isinstance(content, list | tuple):
        rest = [{**part, "text": ""} if isinstance(part, Mapping) else "" for part in content[1:]]
        first = content[0] if content else None
        return [{**first, "text": marker} if isinstance(first, Mapping) else marker, *rest]
    return marker
