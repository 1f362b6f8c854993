"""What a dialect does, and what all of them share.

Chat form is the pool's one form of a request: messages with the roles system, user, assistant and tool, and tools as
`{"type": "function", "function": {…}}`. What it cannot say (images, tools that only a model's maker can run) is refused
in the dialect's own words, because a call that lacks it is another call than the program made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from rolloutpool_common.errors import RolloutPoolError

LONGEST_NAME = 256
"""Characters, as of messages that come to the pool in any other way."""
ErrorKind = Literal["invalid", "long", "key", "unknown", "large", "busy", "ended", "failed"]


class CallRefused(RolloutPoolError):
    """The request cannot be put into chat form."""


@dataclass(frozen=True)
class AgentRequest:
    """A program's request in chat form."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    stream: bool
    model: str
    """As the program named it; it is given back."""
    with_usage: bool = True
    """Whether a stream ends with the counts of tokens."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Of tools that the dialect has in a namespace: name in chat form -> namespace."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """How the program would have the turn sampled, by the pool's names; as it came, so nobody has checked it."""
    after: str | None = None
    """The reply that the messages stand behind, where the program names it instead of sending its history."""
    renews_system: bool = False
    """Whether the first message is a system text for the whole talk, and not something said behind `after`."""


@dataclass(frozen=True)
class AgentReply:
    """A turn of the policy, as it goes to a program."""

    id: str
    """Unique in the pool, and the same for each repetition."""
    created: int
    """Seconds since 1970; of the door's clock."""
    text: str
    reasoning: str
    calls: list[dict[str, Any]]
    """Tool calls in chat form, their arguments as text."""
    cut: bool
    """Whether it was cut by length."""
    prompt_tokens: int
    sampled_tokens: int

    @classmethod
    def of(cls, uid: str, n: int, created: int, stored: Mapping[str, Any]) -> "AgentReply":
        """Reads a reply as the worker has kept it."""
        message = stored["message"]
        return cls(
            id=f"{uid}-{n}",
            created=created,
            text=message.get("content") or "",
            reasoning=message.get("reasoning_content") or "",
            calls=[_with_text(call) for call in message.get("tool_calls") or ()],
            cut=stored.get("finish_reason") == "length",
            prompt_tokens=stored["prompt_tokens"],
            sampled_tokens=stored["sampled_tokens"],
        )


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {**call, "function": {**function, "arguments": text}}


class Dialect(Protocol):
    """One way in which programs call a model."""

    name: str
    """As people know it."""
    media_type: str
    """Of a stream."""
    prompt_fields: frozenset[str]
    """Fields of a request that make its prompt. All others say how it is asked."""
    ping: bytes
    """What is sent while the policy samples, so that nobody on the way gives the connection up."""

    def read(self, body: Mapping[str, Any], *, drop: bool) -> AgentRequest:
        """Puts a request into chat form; with `drop`, hosted tools are left out. Raises `CallRefused`."""
        ...

    def whole(self, reply: AgentReply, request: AgentRequest) -> dict[str, Any]:
        """Writes a reply as one object."""
        ...

    def events(self, reply: AgentReply, request: AgentRequest) -> Iterator[bytes]:
        """Writes a reply as a stream."""
        ...

    def error(self, kind: ErrorKind, message: str) -> dict[str, Any]:
        """Writes an error as one object."""
        ...

    def error_event(self, kind: ErrorKind, message: str) -> bytes:
        """Writes an error into a stream that has begun."""
        ...


STATUS: Mapping[ErrorKind, int] = {
    "invalid": 400,
    "long": 400,
    "key": 401,
    "unknown": 404,
    "large": 413,
    "busy": 429,
    "ended": 403,
    "failed": 503,
}
"""Only `busy` and `failed` are repeated by SDKs."""


def sampling_of(body: Mapping[str, Any], length: Sequence[str], stop: str) -> dict[str, Any]:
    """Reads how a program would have its turn sampled; `length` and `stop` are the dialect's names for these."""
    stops = body.get(stop)
    given = {
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "max_tokens": next((body[name] for name in length if body.get(name) is not None), None),
        "stop": [stops] if isinstance(stops, str) else stops or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Writes one server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(data) + b"\n\n"


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """Checks that a value is a list of objects."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise CallRefused(f"{what} must be a list of objects")
    return value


def texts(content: Any, kinds: Sequence[str], what: str, between: str = "") -> str:
    """Returns content that is text, or parts of text of these types."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    found = []
    for place, part in enumerate(objects(content, what)):
        if part.get("type") not in kinds or not isinstance(part.get("text"), str):
            raise CallRefused(f"{what}[{place}] is {str(part.get('type'))[:64]!r}; the policy reads text only")
        found.append(part["text"])
    return between.join(found)


def text_field(value: Mapping[str, Any], name: str, what: str) -> str:
    """Returns a field that must be text with something in it."""
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise CallRefused(f"{what} has no {name!r}")
    return found


def function_tool(name: str, description: Any, parameters: Any) -> dict[str, Any]:
    """Makes a tool in chat form."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def hosted_tool(name: str) -> CallRefused:
    """Says that nobody here can run a tool."""
    return CallRefused(
        f"tool {name[:64]!r} can only be run by a model's maker; with `hosted_tools: drop` in the rollout's `harness` "
        "such tools are left out"
    )


def refuse_unread(body: Mapping[str, Any], unread: Mapping[str, str]) -> None:
    """Refuses fields without which the policy would be asked something else; `unread` says what to send instead."""
    for name, instead in unread.items():
        if body.get(name) is not None:
            raise CallRefused(f"{name} is not read here; {instead}")


def call_of(id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Makes a tool call in chat form; some programs write arguments as the object that they are, or none."""
    _short(id, "the id of a call")
    _short(name, "the name of a called tool")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise CallRefused(f"the arguments of a call of {name[:64]!r} are neither text nor an object")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def message_of(role: str, content: str | None, calls: Sequence[Any] = (), call_id: str | None = None) -> dict[str, Any]:
    """Makes a message in normal form (`protocol/messages.py`), which needs no further check."""
    if call_id is not None:
        _short(call_id, "the id of a call")
    return {"role": role, "content": content, "tool_calls": list(calls) or None, "tool_call_id": call_id}


def _short(name: str, what: str) -> None:
    if len(name) > LONGEST_NAME:
        raise CallRefused(f"{what} has more than {LONGEST_NAME} characters")


def joined_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Makes one system message of those at the beginning, because most templates print one; later ones stay."""
    first = next((place for place, one in enumerate(messages) if one["role"] != "system"), len(messages))
    if first < 2:
        return messages
    text = "\n\n".join(one["content"] or "" for one in messages[:first])
    return [message_of("system", text), *messages[first:]]
