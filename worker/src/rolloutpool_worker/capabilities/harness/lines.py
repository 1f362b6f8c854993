"""Finds which line of talk a call of a program continues.

A program sends its whole history with each call. A *line* is a history that has only grown: it continues one ledger, so
all that was sampled in it is in one sample. How the line of a call is found:

1. Messages are compared by their *shape*: role, text, and calls by name and arguments. A program gets a reply in the
   words of its dialect and gives it back in them, so reasoning, ids, blanks around a reply, and how arguments were
   written are no part of it.
2. A call continues a line with the same tools if that line's messages, up to its last reply, are the beginning of the
   call's messages, and the call has more than these, but nothing more of an assistant: what follows a turn in a ledger
   is no turn.
3. Of several such lines, one is meant whose reply the call names: outright (`previous_response_id`), or by the ids of
   its tool calls (`call_{n}_{i}` is the i-th call of reply n); else the longest; else the oldest.
4. Otherwise the call begins a line. What it shares with another one is taken over as it was sampled (reasoning and
   all), and not as the program gives it back.

A line is found from stored things alone, and only by replies that were there when the call came. So another worker that
reads the calls from the first one finds the same lines.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from rolloutpool_common.capabilities.harness.given_calls import RAW_ARGUMENTS, place_of_call
from rolloutpool_common.protocol.messages import text_of

NO_TOOLS = ""
"""Stands for the digest where a call has no tools."""
REMEMBERED = 1000
"""Characters; longer arguments are spelled anew each time."""
Shape = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text, and the calls with their arguments in one spelling."""


def shape_of(message: Mapping[str, Any]) -> Shape:
    """Returns what two messages have in common that say the same."""
    calls, role, text = message.get("tool_calls") or (), message["role"], text_of(message)
    return (
        role,
        # Some programs give no blanks back that a reply begins or ends with, and no reply of blanks.
        text.strip() if role == "assistant" else text,
        tuple((call["function"]["name"], _spelled(call["function"]["arguments"])) for call in calls),
    )


def _spelled(arguments: Any) -> str:
    """Spells arguments in one way, whoever has written them."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return _spelling(text) if len(text) > REMEMBERED else _remembered(text)


def _spelling(text: str) -> str:
    try:
        read = _READER.decode(text if text.strip() else "{}")
        if isinstance(read, dict) and [*read] == [RAW_ARGUMENTS] and isinstance(read[RAW_ARGUMENTS], str):
            return _spelling(read[RAW_ARGUMENTS])
        return _WRITER.encode(read)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float:
    """Reads a number as JavaScript does, which gives 1.0 back as 1, long ones rounded, and -0 as 0."""
    return float(text) + 0.0


_READER = json.JSONDecoder(parse_int=_number, parse_float=_number)
_WRITER = json.JSONEncoder(sort_keys=True)
# A program mostly gives a call back as it got it.
_remembered = lru_cache(maxsize=256)(_spelling)


@dataclass(eq=False)
class TalkLine:
    """One line of talk."""

    number: int
    """From 1."""
    tools_digest: str
    real: list[dict[str, Any]]
    """Its messages as the policy has them."""
    first: int
    """The call that began it."""
    parent: "TalkLine | None" = None
    """The line whose beginning it shares."""
    begins: int = 0
    """How many messages its first call had."""
    shapes: list[Shape] = field(default_factory=list)
    """Of its messages as the program has them, up to its last reply, or to its last call while that is open."""
    calls: list[int] = field(default_factory=list)
    """Its calls in their order."""
    replied: int = 0
    """The place of its last reply among the session's replies; 0 while a call of it is open."""
    replies: list[tuple[int, int]] = field(default_factory=list)
    """For each of its replies how many messages there were with it, and its place among the session's replies."""

    @property
    def has_tools(self) -> bool:
        """Whether its program can run tools."""
        return self.tools_digest != NO_TOOLS

    @property
    def system(self) -> Shape | None:
        """Returns its first message if that is the system's."""
        return self.shapes[0] if self.shapes[0][0] == "system" else None


@dataclass(frozen=True)
class Continued:
    """Says what a call adds to a line."""

    line: TalkLine
    new: list[dict[str, Any]]
    """Messages behind the line's last reply; all of them where the call begins the line."""
    begins: bool


class _Reply(NamedTuple):
    """A reply of a line: how many messages there are with it, and its place among the session's replies."""

    line: TalkLine
    end: int
    place: int


class Lines:
    """The lines of one session."""

    def __init__(self) -> None:
        self.all: list[TalkLine] = []
        # A program may begin thousands of lines, so none is looked for among all. The key is a hash of the messages up
        # to a reply and with it; what is found by it is compared with the messages themselves.
        self._by_end: dict[int, list[_Reply]] = {}
        # Each shape once, so that two that are equal are compared at a glance.
        self._shapes: dict[Shape, Shape] = {}
        self._by_digest: dict[str, Shape] = {}
        self._by_reply: dict[int, tuple[int, dict[str, Any]]] = {}

    def find(
        self,
        n: int,
        replied: int,
        messages: Sequence[dict[str, Any]],
        tools_digest: str,
        digests: Sequence[str] | None = None,
        after: int | None = None,
    ) -> Continued:
        """Says which line call `n` continues, which came when there were so many replies; it is open from now on.

        `tools_digest` is that of the call's tools, or `NO_TOOLS`. With `digests`, one for each message, a shape is made
        once for each of them. `after` is the reply that the program says to go on from.
        """
        shapes = [
            self._shape(None if digests is None else digests[place], message) for place, message in enumerate(messages)
        ]
        # Those that the call has in common with a line, up to a reply; a call has at least one message more.
        common = [
            one
            for end, key in enumerate(hashes_of(shapes[:-1]), 1)
            for one in self._by_end.get(key, ())
            if one.place <= replied and one.end == end and one.line.shapes[:end] == shapes[:end]
        ]
        if after is not None:
            # It goes on from this reply and from no other, whatever texts are equal.
            place, _ = self._by_reply.get(after, (0, None))
            common = [one for one in common if one.place == place] or common
        line = self._continued(common, messages, tools_digest)
        if line is not None:
            known = len(line.shapes)
            new = [self._real(message, replied) for message in messages[known:]]
            line.shapes = shapes
            line.real += new
            begins = False
        else:
            parent, shared = _shared(common)
            taken = [] if parent is None else parent.real[:shared]
            new = [*taken, *(self._real(message, replied) for message in messages[shared:])]
            line = TalkLine(len(self.all) + 1, tools_digest, list(new), n, parent, len(shapes), shapes)
            self.all.append(line)
            begins = True
        line.calls.append(n)
        line.replied = 0
        return Continued(line, new, begins)

    def answered(self, line: TalkLine, n: int, place: int, message: dict[str, Any]) -> None:
        """Adds the reply to a line's open call; `place` is its place among the session's replies."""
        shape = shape_of(message)
        line.real.append(message)
        line.shapes = [*line.shapes, self._shapes.setdefault(shape, shape)]
        line.replies.append((len(line.real), place))
        line.replied = place
        *_, key = hashes_of(line.shapes)
        self._by_end.setdefault(key, []).append(_Reply(line, len(line.shapes), place))
        self._by_reply[n] = place, message

    def _shape(self, digest: str | None, message: Mapping[str, Any]) -> Shape:
        found = None if digest is None else self._by_digest.get(digest)
        if found is None:
            shape = shape_of(message)
            found = self._shapes.setdefault(shape, shape)
            if digest is not None:
                self._by_digest[digest] = found
        return found

    def _continued(
        self, common: "Sequence[_Reply]", messages: Sequence[dict[str, Any]], digest: str
    ) -> TalkLine | None:
        said = max((place for place, one in enumerate(messages, 1) if one["role"] == "assistant"), default=0)
        found = [
            one.line
            for one in common
            if one.place == one.line.replied and one.line.tools_digest == digest and one.end == said
        ]
        named = [line for line in found if self._names(messages[len(line.shapes) - 1], line.calls[-1])]
        return max(named or found, key=lambda line: (len(line.shapes), -line.number), default=None)

    @staticmethod
    def _names(message: Mapping[str, Any], n: int) -> bool:
        """Whether a reply that was given back has ids of reply `n`."""
        ids = [found for call in message.get("tool_calls") or () if (found := place_of_call(call["id"]))]
        return bool(ids) and all(reply == n for reply, _ in ids)

    def _real(self, message: dict[str, Any], replied: int) -> dict[str, Any]:
        """Puts the policy's own ids in the place of those that the program was given."""
        if message["role"] == "tool":
            return {**message, "tool_call_id": self._own_id(message.get("tool_call_id") or "", replied)}
        if message["role"] == "assistant" and message.get("tool_calls"):
            calls = [{**call, "id": self._own_id(call["id"], replied)} for call in message["tool_calls"]]
            return {**message, "tool_calls": calls}
        return message

    def _own_id(self, given: str, replied: int) -> str:
        found = place_of_call(given)
        # A reply that was not there yet has given no id, even if it is there when the calls are read again.
        known = None if found is None else self._by_reply.get(found[0])
        if found is None or known is None or known[0] > replied:
            return given
        calls = known[1].get("tool_calls") or []
        own: str = calls[found[1]]["id"] if found[1] < len(calls) else given
        return own


def _shared(common: Sequence[_Reply]) -> tuple[TalkLine | None, int]:
    """Returns the line with which a new one shares most, and how many messages.

    It shares whole replies: what stands before the first one is the program's own, and belongs to nobody.
    """
    best = max(common, key=lambda one: (one.end, -one.line.number), default=None)
    return (None, 0) if best is None else (best.line, best.end)


def hashes_of(shapes: Sequence[Shape]) -> Iterator[int]:
    """Hashes the first message, the first two, and so on."""
    key = 0
    for shape in shapes:
        key = hash((key, shape))
        yield key


def common_length(one: Sequence[Shape], other: Sequence[Shape]) -> int:
    """Counts the messages that two histories have in common from their beginnings."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
