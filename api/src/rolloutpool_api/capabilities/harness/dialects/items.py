"""Items of replies, which a Responses program may name by their ids instead of sending them (`item_reference`).

1. Each item that a program is given has an id that says which reply it is of, and which of its parts (`item_id`).
2. Where a program names one, its dialect notes that in the message to which the item belongs (`NAMED`).
3. The door reads those replies, and fills in what they said (`filled`). So the message is the one that a program sends
   which gives all items back.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rolloutpool_api.capabilities.harness.dialects.base import AgentReply, CallRefused
from rolloutpool_common.capabilities.harness.given_calls import given_id

Kind = Literal["rs", "msg", "fc"]
KINDS: tuple[Kind, ...] = ("rs", "msg", "fc")
NAMED = "items"
"""Where a message has the items that are to be filled in."""


class GivenItem(NamedTuple):
    """An item of a reply."""

    kind: Kind
    reply: str
    """The reply's id, as `AgentReply` has it."""
    place: int = 0
    """Which of the reply's calls it is."""

    @classmethod
    def read(cls, name: str) -> "GivenItem":
        """Reads the id of an item; raises `CallRefused` where no session has given such ids."""
        given, _, reply = name.partition("_")
        place = "0"
        if given == "fc":
            reply, _, place = reply.rpartition("_")
        kind = next((kind for kind in KINDS if kind == given), None)
        numbers = [reply.rpartition("-")[2], place]
        if kind is None or not all(one.isascii() and one.isdecimal() and len(one) < 9 for one in numbers):
            raise _not_given(name)
        return cls(kind, reply, int(place))

    @property
    def call_id(self) -> str:
        """The id of the call that it is."""
        return given_id(int(self.reply.rpartition("-")[2]), self.place)


def item_id(kind: Kind, reply: str, place: int = 0) -> str:
    """Writes the id of an item: reasoning (`rs`), text (`msg`), or a call (`fc`)."""
    return f"{kind}_{reply}_{place}" if kind == "fc" else f"{kind}_{reply}"


def _not_given(name: str) -> CallRefused:
    """Says that a program has named an item that it was never given."""
    return CallRefused(f"an item_reference names {name[:64]!r}, which this session has not given")


def named_replies(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the ids of replies of which messages name items, each once."""
    return list(dict.fromkeys(item.reply for message in messages for item in message.get(NAMED, ())))


def filled(messages: Sequence[dict[str, Any]], replies: Mapping[str, AgentReply]) -> list[dict[str, Any]]:
    """Puts what the named items said into their messages. Raises `CallRefused` where a reply has no such item."""
    return [_filled(message, replies) if NAMED in message else message for message in messages]


def _filled(message: dict[str, Any], replies: Mapping[str, AgentReply]) -> dict[str, Any]:
    message = {**message}
    calls: dict[str, dict[str, Any]] = {}
    for item in message.pop(NAMED):
        reply = replies.get(item.reply)
        if reply is None or item.place >= (len(reply.calls) if item.kind == "fc" else 1):
            raise _not_given(item_id(*item))
        if item.kind == "msg":
            message["content"] = reply.text or None
        elif item.kind == "fc":
            calls[item.call_id] = reply.calls[item.place]
    if calls:
        message["tool_calls"] = [calls.get(call["id"], call) for call in message["tool_calls"]]
    return message
