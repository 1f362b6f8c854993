"""Brings content in parts into the form that a template takes: a list of text parts as it is, or one string.

1. A part that is no text is refused. Where a message came in, that was refused before; this is for what was stored.
2. If the template's source reads no parts for this role (`part_reader`), it takes strings: the texts are joined, with
   nothing between them.
3. If it reads them, it must write them as it writes the joined string. That is tried with invented conversations,
   once for each form of content: one part or several, white space at their edges, empty parts, words that the template
   looks for.
   - It writes the same: parts are given as they are, without other keys than `type` and `text`.
   - It does not read this list after all (it raises, or prints it as Python or JSON writes it): the texts are joined.
   - It writes something else, as templates that trim each part do: refused, because nobody can say which of the two
     was meant.

So parts always have the ids of the joined string. Conversations without parts pay for one `isinstance` a message.

Example: Gemma 3 trims each part. `["a", "b"]` is given as it is, and `["a ", "b"]` is refused: it would read `ab`, and
the string reads `a b`.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from cachetools import LRUCache

from rolloutpool_common.protocol.content import content_fault, joined_text
from rolloutpool_common.rendering.errors import PartsRefused, RenderFailed
from rolloutpool_common.rendering.part_reader import reads_parts

__all__ = ["ContentParts"]

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], bool], str]
"""Renders messages, with a tool shown or without; raises RenderFailed."""

_FORMS = 256
"""Forms of content whose verdict is remembered."""
_WORDS = ("heron", "ibex")
_CALL = "call00000"


class _Form(NamedTuple):
    """What a template can tell about parts beside their texts."""

    role: str
    tools: bool
    several: bool
    edged: bool
    """Whether a part begins or ends with white space."""
    empty: bool
    """Whether a part is empty, or white space alone."""
    words: tuple[str, ...]
    """Those that the template looks for, and that are in the text."""


class _Verdict(NamedTuple):
    joins: bool
    refusal: str | None = None


class ContentParts:
    """What one template does with content in parts. Thread-safe."""

    def __init__(self, source: str, words: Sequence[str], render: Render) -> None:
        """Tries nothing yet.

        Args:
            source: Of the template.
            words: That it looks for in texts.
            render: Renders with it.
        """
        self._source = source
        self._words = words
        self._render = render
        self._verdicts: LRUCache[_Form, _Verdict] = LRUCache(_FORMS)
        self._lock = Lock()

    def settle(self, message: Message, tools: bool) -> dict[str, Any]:
        """Copies a message that has content in parts, with its content as the template takes it.

        Args:
            message: Its content is a list.
            tools: Whether the template is shown tools.

        Raises:
            PartsRefused: A part is no text, or the template writes parts otherwise than the same text as a string.
        """
        role, parts = str(message.get("role")), message["content"]
        if (fault := content_fault(parts)) is not None:
            raise PartsRefused(f"A message of the role {role} has {fault}.")
        text = joined_text(parts)
        if not text or not reads_parts(self._source, role):
            return {**message, "content": text}
        texts = [part["text"] for part in parts]
        verdict = self._verdict(
            _Form(
                role,
                tools,
                several=len(texts) > 1,
                edged=any(one != one.strip() for one in texts),
                empty=not all(map(str.strip, texts)),
                words=tuple(word for word in self._words if word in text),
            )
        )
        if verdict.refusal is not None:
            raise PartsRefused(verdict.refusal)
        return {**message, "content": text if verdict.joins else _parts(texts)}

    def _verdict(self, form: _Form) -> _Verdict:
        with self._lock:
            verdict = self._verdicts.get(form)
        if verdict is None:
            # Outside the lock, because it renders. Two threads may find the same verdict at once.
            verdict = self._tried(form)
            with self._lock:
                self._verdicts[form] = verdict
        return verdict

    def _tried(self, form: _Form) -> _Verdict:
        texts = _texts(form)
        found = _Verdict(joins=False)
        for place in _places(form.role):
            try:
                plain = self._render(place("".join(texts)), form.tools)
            except RenderFailed:
                # The template takes no such conversation. If it takes none at all, the real render says why.
                continue
            try:
                listed = self._render(place(_parts(texts)), form.tools)
            except RenderFailed:
                return _Verdict(joins=True)
            if listed == plain:
                continue
            if listed.count('"type"') > plain.count('"type"') or listed.count("'type'") > plain.count("'type'"):
                return _Verdict(joins=True)
            found = _Verdict(joins=False, refusal=_refusal(form, plain))
        return found


def _parts(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _texts(form: _Form) -> list[str]:
    texts = list(_WORDS if form.several else _WORDS[:1])
    if form.edged:
        texts = [f" {text}\n" for text in texts]
    if form.empty:
        blank = " " if form.edged else ""
        texts = [texts[0], blank, *texts[1:]] if form.several else [blank]
    return [" ".join((*form.words, texts[0])), *texts[1:]] if form.words else texts


def _places(role: str) -> list[Callable[[Any], list[Message]]]:
    """Conversations in which a message of this role has the content that they are given: at first, and later."""

    def said(content: Any) -> Message:
        return {"role": role, "content": content}

    def result(content: Any) -> Message:
        return {"role": role, "content": content, "tool_call_id": _CALL, "name": "f"}

    user, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
    call = {"id": _CALL, "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
    calling = {**answer, "content": "", "tool_calls": [call]}
    if role in ("tool", "function"):
        return [lambda content: [user, calling, result(content)]]
    if role == "assistant":
        return [
            lambda content: [user, said(content), user],
            lambda content: [user, {**said(content), "tool_calls": [call]}, {**result("r"), "role": "tool"}],
        ]
    if role == "user":
        return [lambda content: [said(content)], lambda content: [user, answer, said(content)]]
    return [lambda content: [said(content), user], lambda content: [user, answer, said(content), user]]


def _refusal(form: _Form, plain: str) -> str:
    if not form.empty and _WORDS[0] not in plain:
        return (
            f"This template does not write the content of {form.role} messages where it is a string, so parts and "
            "strings are not alike. Use a template that takes both."
        )
    return (
        "This template neither takes text parts nor strings alike: it writes parts of a message of the role "
        f"{form.role} otherwise than the same text as a string. Send content as a string."
    )
