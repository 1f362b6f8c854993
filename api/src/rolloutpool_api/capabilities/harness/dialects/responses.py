"""OpenAI's Responses: a list of items, tools in namespaces, a stream of named events with numbers."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rolloutpool_api.capabilities.harness.dialects.base import (
    AgentReply,
    AgentRequest,
    CallRefused,
    ErrorKind,
    call_of,
    event,
    function_tool,
    hosted_tool,
    joined_system,
    message_of,
    objects,
    refuse_unread,
    sampling_of,
    text_field,
    texts,
)
from rolloutpool_api.capabilities.harness.dialects.chat import ROLES, TYPES
from rolloutpool_api.capabilities.harness.dialects.items import NAMED, GivenItem, item_id
from rolloutpool_common.capabilities.harness.given_calls import place_of_call

TEXT = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")

UNREAD = {
    "conversation": "send the whole input, or `previous_response_id`",
    "prompt": "send what it says as `instructions` and `input`",
}


class ResponsesDialect:
    """Requests and replies of `/v1/responses`."""

    name = "Responses"
    media_type = "text/event-stream"
    prompt_fields = frozenset({"instructions", "input", "tools"})
    ping = b": the policy samples\n\n"

    def read(self, body: Mapping[str, Any], *, drop: bool) -> AgentRequest:
        """See `Dialect.read`."""
        refuse_unread(body, UNREAD)
        after = None
        if body.get("previous_response_id") is not None:
            after = text_field(body, "previous_response_id", "the request").removeprefix("resp_")
        read = _Messages()
        if body.get("instructions"):
            read.append(message_of("system", text_field(body, "instructions", "the request")))
        given = body.get("input")
        if isinstance(given, str):
            read.append(message_of("user", given))
        else:
            for item in objects(given, "input"):
                read.add(item)
        messages = read.messages
        tools, namespaces = _tools(body, drop=drop)
        return AgentRequest(
            messages=messages if after else joined_system(messages),
            tools=tools,
            stream=body.get("stream") is True,
            model=str(body.get("model") or "policy"),
            namespaces=namespaces,
            sampling=sampling_of(body, ("max_output_tokens",), "stop"),
            after=after,
            renews_system=bool(body.get("instructions")),
        )

    def whole(self, reply: AgentReply, request: AgentRequest) -> dict[str, Any]:
        """See `Dialect.whole`."""
        status = "incomplete" if reply.cut else "completed"
        return {
            **_head(reply, request, status),
            "incomplete_details": {"reason": "max_output_tokens"} if reply.cut else None,
            "output": list(_items(reply, request)),
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": reply.sampled_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
            },
        }

    def events(self, reply: AgentReply, request: AgentRequest) -> Iterator[bytes]:
        """See `Dialect.events`."""
        for number, data in enumerate(self._events(reply, request)):
            yield event({**data, "sequence_number": number}, data["type"])

    def _events(self, reply: AgentReply, request: AgentRequest) -> Iterator[dict[str, Any]]:
        begun = {**_head(reply, request, "in_progress"), "incomplete_details": None, "output": [], "usage": None}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(_items(reply, request)):
            place = {"output_index": index, "item_id": item["id"]}
            empty: dict[str, dict[str, Any]] = {
                "message": {"content": []},
                "function_call": {"arguments": ""},
                "reasoning": {"summary": []},
            }
            started = {**item, **empty[item["type"]], "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": started}
            if item["type"] == "message":
                part = item["content"][0]
                at = {**place, "content_index": 0}
                yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
                yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
                yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
                yield {"type": "response.content_part.done", **at, "part": part}
            elif item["type"] == "function_call":
                arguments = item["arguments"]
                yield {"type": "response.function_call_arguments.delta", **place, "delta": arguments}
                yield {
                    "type": "response.function_call_arguments.done",
                    **place,
                    "name": item["name"],
                    "arguments": arguments,
                }
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        ended = self.whole(reply, request)
        yield {"type": "response.incomplete" if reply.cut else "response.completed", "response": ended}

    def error(self, kind: ErrorKind, message: str) -> dict[str, Any]:
        """See `Dialect.error`."""
        name, code = TYPES[kind]
        return {"error": {"message": message, "type": name, "param": None, "code": code}}

    def error_event(self, kind: ErrorKind, message: str) -> bytes:
        """See `Dialect.error_event`. A bare `error` before `response.created` breaks the SDK's own reader."""
        empty = AgentReply("failed", int(time.time()), "", "", [], cut=False, prompt_tokens=0, sampled_tokens=0)
        request = AgentRequest([], [], stream=True, model="policy")
        begun = {**_head(empty, request, "in_progress"), "incomplete_details": None, "output": [], "usage": None}
        failed = {**begun, "status": "failed", "error": {"code": "server_error", "message": message}}
        created = event({"type": "response.created", "response": begun, "sequence_number": 0}, "response.created")
        return created + event({"type": "response.failed", "response": failed, "sequence_number": 1}, "response.failed")


def _head(reply: AgentReply, request: AgentRequest, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def _items(reply: AgentReply, request: AgentRequest) -> Iterator[dict[str, Any]]:
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        yield {"type": "reasoning", "id": item_id("rs", reply.id), "summary": summary, "encrypted_content": reply.id}
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        yield {
            "type": "message",
            "id": item_id("msg", reply.id),
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    for place, call in enumerate(reply.calls):
        name = call["function"]["name"]
        namespace = request.namespaces.get(name)
        yield {
            "type": "function_call",
            "id": item_id("fc", reply.id, place),
            "call_id": call["id"],
            "name": name if namespace is None else name.removeprefix(_prefix(namespace)),
            **({} if namespace is None else {"namespace": namespace}),
            "arguments": call["function"]["arguments"],
            "status": "completed",
        }


def _prefix(namespace: str) -> str:
    return f"{namespace}__"


class _Messages:
    """Makes messages of the items of an input. What the policy said in one turn comes as several, and is one again."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None
        """The last turn of the policy, while nothing but results stands behind it."""
        self._replies: set[int] = set()
        """The replies whose calls it has, by their ids."""
        self._named: set[GivenItem] = set()

    def append(self, message: dict[str, Any]) -> None:
        """Adds a whole message."""
        self.messages.append(message)
        if message["role"] != "tool":
            self._turn = message if message["role"] == "assistant" else None
            self._replies = set()

    def add(self, item: Mapping[str, Any]) -> None:
        """Adds an item."""
        kind = item.get("type") or ("message" if "role" in item or "id" not in item else "item_reference")
        if kind == "reasoning":
            # A turn begins with it, and may have nothing else.
            self._open_turn()
        elif kind == "message":
            role = ROLES.get(str(item.get("role")))
            if role is None or role == "tool":
                raise CallRefused(f"a message has the role {str(item.get('role'))[:64]!r}")
            said = texts(item.get("content"), TEXT, "content")
            if role == "assistant":
                self._opened_for_text()["content"] = said
            else:
                self.append(message_of(role, said))
        elif kind in ("function_call", "custom_tool_call"):
            name = text_field(item, "name", "a call")
            if isinstance(namespace := item.get("namespace"), str):
                name = _prefix(namespace) + name
            arguments = item.get("arguments" if kind == "function_call" else "input")
            self._add_call(call_of(text_field(item, "call_id", "a call"), name, arguments))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = texts(item.get("output"), TEXT, "output")
            self.append(message_of("tool", output, call_id=text_field(item, "call_id", "a call's output")))
        elif kind == "item_reference":
            self._add_named(GivenItem.read(text_field(item, "id", "an item_reference")))
        else:
            raise CallRefused(f"an item of type {str(kind)[:64]!r} cannot be said in a chat")

    def _open_turn(self) -> dict[str, Any]:
        """Returns the policy's turn if it is the last message, or begins one."""
        if self._turn is None or self.messages[-1] is not self._turn:
            self.append(message_of("assistant", None))
        return self.messages[-1]

    def _opened_for_text(self) -> dict[str, Any]:
        """Likewise; a turn that has said something, or calls, takes no further text."""
        turn = self._open_turn()
        if turn["content"] or turn["tool_calls"]:
            self.append(message_of("assistant", None))
        return self.messages[-1]

    def _add_call(self, call: dict[str, Any]) -> dict[str, Any]:
        """Adds a call to the turn that it is of: the last message, or the one that gave its results' calls their ids.

        Some programs put the result of a call behind it, and then the next call of the same turn.
        """
        given = place_of_call(call["id"])
        turn = self._turn
        if turn is None or (self.messages[-1] is not turn and (given is None or given[0] not in self._replies)):
            turn = message_of("assistant", None)
            self.append(turn)
        if turn["tool_calls"] is None:
            turn["tool_calls"] = []
        turn["tool_calls"].append(call)
        if given is not None:
            self._replies.add(given[0])
        return turn

    def _add_named(self, item: GivenItem) -> None:
        """Adds an item that is to be filled in. A call has its id already, by which it belongs to its turn."""
        # Each once: a request of 16 MB could name a long reply ten thousand times, and fill the door's memory.
        if item in self._named:
            raise CallRefused(f"an item_reference names {item_id(*item)[:64]!r} a second time")
        self._named.add(item)
        if item.kind == "fc":
            turn = self._add_call({"id": item.call_id})
        else:
            turn = self._opened_for_text() if item.kind == "msg" else self._open_turn()
        turn.setdefault(NAMED, []).append(item)


def _tools(body: Mapping[str, Any], *, drop: bool) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns tools in chat form, and of those in a namespace their namespaces."""
    found: list[dict[str, Any]] = []
    namespaces: dict[str, str] = {}
    if body.get("tool_choice") == "none":
        return found, namespaces
    for tool in objects(body.get("tools"), "tools"):
        kind = tool.get("type")
        if kind == "function":
            found.append(_function(tool))
        elif kind == "namespace":
            namespace = text_field(tool, "name", "a namespace")
            for one in objects(tool.get("tools"), "the tools of a namespace"):
                name = _prefix(namespace) + text_field(one, "name", "a tool")
                namespaces[name] = namespace
                found.append(_function({**one, "name": name}))
        elif not drop:
            raise hosted_tool(str(kind))
    return found, namespaces


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return function_tool(text_field(tool, "name", "a tool"), tool.get("description"), tool.get("parameters"))
