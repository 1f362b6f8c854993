"""Anthropic's Messages: content in blocks, tool results in the user's messages, a stream of named events."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

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
    sampling_of,
    text_field,
    texts,
)
from rolloutpool_common.capabilities.harness.given_calls import RAW_ARGUMENTS

TYPES: Mapping[ErrorKind, str] = {
    "invalid": "invalid_request_error",
    "long": "invalid_request_error",
    "key": "authentication_error",
    "unknown": "not_found_error",
    "large": "request_too_large",
    "busy": "rate_limit_error",
    "ended": "permission_error",
    "failed": "overloaded_error",
}
THINKING = ("thinking", "redacted_thinking")
BETWEEN = "\n"
"""Stands between blocks of text, which are paragraphs of their own."""


class MessagesDialect:
    """Requests and replies of `/v1/messages`."""

    name = "Messages"
    media_type = "text/event-stream"
    prompt_fields = frozenset({"system", "messages", "tools"})
    ping = event({"type": "ping"}, "ping")

    def read(self, body: Mapping[str, Any], *, drop: bool) -> AgentRequest:
        """See `Dialect.read`."""
        messages = []
        if body.get("system") is not None:
            messages.append(message_of("system", texts(body["system"], ("text",), "system", BETWEEN)))
        for message in objects(body.get("messages"), "messages"):
            messages += _messages(message)
        return AgentRequest(
            messages=joined_system(messages),
            tools=list(_tools(body, drop=drop)),
            stream=body.get("stream") is True,
            model=str(body.get("model") or "policy"),
            sampling=sampling_of(body, ("max_tokens",), "stop_sequences"),
        )

    def whole(self, reply: AgentReply, request: AgentRequest) -> dict[str, Any]:
        """See `Dialect.whole`."""
        return {
            **_head(reply, request),
            "content": list(_blocks(reply)),
            "stop_reason": _reason(reply),
            "stop_sequence": None,
            "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": reply.sampled_tokens},
        }

    def events(self, reply: AgentReply, request: AgentRequest) -> Iterator[bytes]:
        """See `Dialect.events`."""
        begun = {"input_tokens": reply.prompt_tokens, "output_tokens": 0}
        start = {**_head(reply, request), "content": [], "stop_reason": None, "stop_sequence": None, "usage": begun}
        yield event({"type": "message_start", "message": start}, "message_start")
        for index, block in enumerate(_blocks(reply)):
            empty, deltas = _in_parts(block)
            yield event({"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start")
            for delta in deltas:
                yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
            yield event({"type": "content_block_stop", "index": index}, "content_block_stop")
        ended = {"stop_reason": _reason(reply), "stop_sequence": None}
        usage = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.sampled_tokens}
        yield event({"type": "message_delta", "delta": ended, "usage": usage}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def error(self, kind: ErrorKind, message: str) -> dict[str, Any]:
        """See `Dialect.error`."""
        return {"type": "error", "error": {"type": TYPES[kind], "message": message}}

    def error_event(self, kind: ErrorKind, message: str) -> bytes:
        """See `Dialect.error_event`."""
        return event(self.error(kind, message), "error")


def _head(reply: AgentReply, request: AgentRequest) -> dict[str, Any]:
    return {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": request.model}


def _blocks(reply: AgentReply) -> Iterator[dict[str, Any]]:
    if reply.reasoning:
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": reply.id}
    if reply.text:
        yield {"type": "text", "text": reply.text}
    for call in reply.calls:
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": _input(function["arguments"])}


def _input(arguments: str) -> Any:
    """Reads arguments, which are an object here; what is none is given under one name, so that the tool refuses it."""
    try:
        found = orjson.loads(arguments if arguments.strip() else "{}")
        # It reads what is nested more deeply than it writes.
        orjson.dumps(found)
    except (ValueError, TypeError):
        found = None
    return found if isinstance(found, dict) else {RAW_ARGUMENTS: arguments}


def _in_parts(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns a block as it starts, and what is added to it."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    written = orjson.dumps(block["input"]).decode()
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _reason(reply: AgentReply) -> str:
    return "max_tokens" if reply.cut else "tool_use" if reply.calls else "end_turn"


def _messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise CallRefused(f"a message has the role {str(role)[:64]!r}")
    if isinstance(content, str) or role == "system":
        return [message_of(role, texts(content, ("text",), "content", BETWEEN))]
    blocks = objects(content, "content")
    return [_assistant(blocks)] if role == "assistant" else list(_user(blocks))


def _assistant(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    said, calls = [], []
    for block in blocks:
        if block.get("type") == "tool_use":
            id, name = text_field(block, "id", "a call"), text_field(block, "name", "a call")
            calls.append(call_of(id, name, block.get("input")))
        elif block.get("type") not in THINKING:
            said.append(block)
    return message_of("assistant", texts(said, ("text",), "content", BETWEEN) or None, calls)


def _user(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own, and stand before what the user says beside them."""
    said = []
    for block in blocks:
        if block.get("type") != "tool_result":
            said.append(block)
            continue
        result = texts(block.get("content"), ("text",), "a tool's result", BETWEEN)
        yield message_of("tool", result, call_id=text_field(block, "tool_use_id", "a tool's result"))
    if said:
        yield message_of("user", texts(said, ("text",), "content", BETWEEN))


def _tools(body: Mapping[str, Any], *, drop: bool) -> Iterator[dict[str, Any]]:
    if body.get("mcp_servers") and not drop:
        raise hosted_tool("mcp_servers")
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "none":
        return
    for tool in objects(body.get("tools"), "tools"):
        # Those that run at Anthropic have a type of their own (`web_search_20250305`) and no schema.
        if tool.get("type") not in (None, "custom") or not isinstance(tool.get("input_schema"), dict):
            if drop:
                continue
            raise hosted_tool(str(tool.get("type") or tool.get("name")))
        yield function_tool(text_field(tool, "name", "a tool"), tool.get("description"), tool["input_schema"])
