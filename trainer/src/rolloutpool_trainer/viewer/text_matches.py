"""Finds a text in what a rollout says: as it is written, in any case of its letters, never as a pattern.

1. A message has several texts: its thinking, its content (of a list of parts, each part's text) and its tool calls.
   They are searched one by one, in the order in which the viewer draws them.
2. What a rollout's tokens read is searched only where its messages have no text. A match among the ids that the sample
   before it has too is left out, so that nothing is found twice.
3. Letters of both cases are the same, one character for one: `ÜBER` is found in `über`, and `STRASSE` not in `straße`.
   So a match is as long as what is sought, and its place in the text is known.
"""

import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import Sample
from rolloutpool_trainer.viewer.runs import common_ids

CONTENT, THINKING, CALL, TOKENS = "content", "thinking", "call", "tokens"
"""Kinds of texts."""
BEFORE, AFTER = 40, 120
"""Characters of the text that are shown around a match."""

BytesOf = Callable[[int], bytes]
"""Gives the bytes of an id."""


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A place where the text was found: in a message, or in the tokens of a sample."""

    kind: str
    """Of the text: content, thinking, call or tokens."""
    before: str
    found: str
    after: str
    """The text around it, cut."""
    message: int | None = None
    """Of which message, from 0."""
    role: str | None = None
    number: int | None = None
    """Which match of that message, from 0."""
    sample: int | None = None
    """Of which sample, from 0."""
    place: int | None = None
    """Of its first token in the sample's prompt and response."""
    turn: int | None = None
    """Whose tokens they are; None in the prompt, and in messages."""


class TextFinder:
    """Finds one text in others."""

    def __init__(self, sought: str, *, match_case: bool = False) -> None:
        """Makes a finder."""
        self._sought = sought if match_case else sought.lower()
        self._match_case = match_case
        self._ascii = sought.isascii()
        self._pattern = re.compile(re.escape(sought), re.IGNORECASE)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Finds all places from left to right, none inside another: first character, and the one after the last."""
        if not self._match_case and not (self._ascii and text.isascii()):
            yield from (found.span() for found in self._pattern.finditer(text))
            return
        # Several times as fast. ASCII letters stay where they are when their case changes.
        held = text if self._match_case else text.lower()
        start = held.find(self._sought)
        while start >= 0:
            end = start + len(self._sought)
            yield start, end
            start = held.find(self._sought, end)


def texts_of_message(message: Message) -> Iterator[tuple[str, str]]:
    """Lists what a message says, as pairs of kind and text."""
    thinking = (message.model_extra or {}).get("reasoning_content")
    if isinstance(thinking, str):
        yield THINKING, thinking
    parts = message.content if isinstance(message.content, list) else [{"text": message.content}]
    for part in parts:
        text = part.get("text")
        if isinstance(text, str):
            yield CONTENT, text
    for call in message.tool_calls or ():
        held = call.function.arguments
        arguments = held if isinstance(held, str) else json.dumps(held, ensure_ascii=False, separators=(",", ":"))
        yield CALL, f"{call.function.name} {arguments}"


def matches_in_messages(finder: TextFinder, messages: Iterable[Message]) -> Iterator[TextMatch]:
    """Finds all matches in messages, in their order."""
    for number, message in enumerate(messages):
        count = 0
        for kind, text in texts_of_message(message):
            for start, end in finder.spans(text):
                around = _around(text, start, end)
                yield TextMatch(kind, *around, message=number, role=message.role, number=count)
                count += 1


def matches_in_tokens(finder: TextFinder, samples: Sequence[Sample], bytes_of: BytesOf) -> Iterator[TextMatch]:
    """Finds all matches in what the tokens of samples read."""
    previous: list[int] = []
    for number, sample in enumerate(samples):
        ids = [*sample.prompt_ids, *sample.response_ids]
        shared = min(common_ids(previous, sample.prompt_ids), len(sample.prompt_ids))
        text, starts, places = _read(ids, bytes_of)
        for start, end in finder.spans(text):
            place, last = (places[bisect_right(starts, at) - 1] for at in (start, end - 1))
            if last < shared:
                continue
            turn = _turn_at(sample, place - len(sample.prompt_ids))
            yield TextMatch(TOKENS, *_around(text, start, end), sample=number, place=place, turn=turn)
        previous = ids


def _read(ids: Sequence[int], bytes_of: BytesOf) -> tuple[str, list[int], list[int]]:
    """Reads ids."""
    pieces: list[str] = []
    starts: list[int] = []
    places: list[int] = []
    length = 0
    for place, piece in _pieces(ids, bytes_of):
        pieces.append(piece)
        starts.append(length)
        places.append(place)
        length += len(piece)
    return "".join(pieces), starts, places


def _pieces(ids: Sequence[int], bytes_of: BytesOf) -> Iterator[tuple[int, str]]:
    """Reads ids one by one. A character that several tokens share is at the first of them, as the viewer draws it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begun = 0
    for place, token in enumerate(ids):
        new = bytes_of(token)
        if decoder.getstate()[0] and not _continues(new):
            # The character before it was cut.
            yield begun, decoder.decode(b"", final=True)
        if not decoder.getstate()[0]:
            begun = place
        if piece := decoder.decode(new):
            yield begun, piece


def _continues(new: bytes) -> bool:
    """Whether bytes begin in the middle of a character of UTF-8."""
    return not new or new[0] & 0xC0 == 0x80


def _turn_at(sample: Sample, response: int) -> int | None:
    owner = (one for one in sample.segments if one.start <= response < one.start + one.n)
    return next((one.turn for one in owner), None)


def _around(text: str, start: int, end: int) -> tuple[str, str, str]:
    return text[max(start - BEFORE, 0) : start], text[start:end], text[end : end + AFTER]
