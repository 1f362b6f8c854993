"""OpenAI's chat completions: the pool's own form, nearly."""

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

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TYPES: Mapping[ErrorKind, tuple[str, str | None]] = {
    "invalid": ("invalid_request_error", None),
    "long": ("invalid_request_error", "context_length_exceeded"),
    "key": ("invalid_request_error", "invalid_api_key"),
    "unknown": ("invalid_request_error", None),
    "large": ("invalid_request_error", "request_too_large"),
    "busy": ("rate_limit_error", "rate_limit_exceeded"),
    "ended": ("invalid_request_error", "session_ended"),
    "failed": ("server_error", None),
}
"""Types and codes of errors, as OpenAI's SDKs know them."""

UNREAD = {"functions": "send `tools`"}


class ChatDialect:
    """Requests and replies of `/v1/chat/completions`."""

    name = "chat completions"
    media_type = "text/event-stream"
    prompt_fields = frozenset({"messages", "tools"})
    ping = b": the policy samples\n\n"

    def read(self, body: Mapping[str, Any], *, drop: bool) -> AgentRequest:
        """See `Dialect.read`."""
        if body.get("n") not in (None, 1):
            raise CallRefused("n must be 1: each reply is a turn of its own; make one call for each")
        refuse_unread(body, UNREAD)
        if body.get("web_search_options") is not None and not drop:
            raise hosted_tool("web_search_options")
        options = body.get("stream_options")
        return AgentRequest(
            messages=joined_system([_message(one) for one in objects(body.get("messages"), "messages")]),
            tools=list(_tools(body, drop=drop)),
            stream=body.get("stream") is True,
            model=str(body.get("model") or "policy"),
            with_usage=isinstance(options, dict) and options.get("include_usage") is True,
            sampling=sampling_of(body, ("max_completion_tokens", "max_tokens"), "stop"),
        )

    def whole(self, reply: AgentReply, request: AgentRequest) -> dict[str, Any]:
        """See `Dialect.whole`."""
        message = {"role": "assistant", "content": reply.text or None, "refusal": None, **_said(reply)}
        return {
            **_head(reply, request, "chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": _reason(reply), "logprobs": None}],
            "usage": usage(reply),
        }

    def events(self, reply: AgentReply, request: AgentRequest) -> Iterator[bytes]:
        """See `Dialect.events`."""
        head = _head(reply, request, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
            return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

        yield chunk({"role": "assistant", "content": "" if reply.text else None})
        if reply.reasoning:
            yield chunk({"reasoning_content": reply.reasoning})
        if reply.text:
            yield chunk({"content": reply.text})
        for place, call in enumerate(reply.calls):
            yield chunk({"tool_calls": [{"index": place, **call}]})
        yield chunk({}, _reason(reply))
        if request.with_usage:
            yield event({**head, "choices": [], "usage": usage(reply)})
        yield b"data: [DONE]\n\n"

    def error(self, kind: ErrorKind, message: str) -> dict[str, Any]:
        """See `Dialect.error`."""
        name, code = TYPES[kind]
        return {"error": {"message": message, "type": name, "param": None, "code": code}}

    def error_event(self, kind: ErrorKind, message: str) -> bytes:
        """See `Dialect.error_event`."""
        return event(self.error(kind, message))


def _head(reply: AgentReply, request: AgentRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": request.model}


def _said(reply: AgentReply) -> dict[str, Any]:
    calls = {"tool_calls": reply.calls} if reply.calls else {}
    return {**calls, **({"reasoning_content": reply.reasoning} if reply.reasoning else {})}


def _reason(reply: AgentReply) -> str:
    return "length" if reply.cut else "tool_calls" if reply.calls else "stop"


def usage(reply: AgentReply) -> dict[str, int]:
    """Counts tokens as chat completions do."""
    total = reply.prompt_tokens + reply.sampled_tokens
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": total,
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise CallRefused(f"a message has the role {str(message.get('role'))[:64]!r}")
    content = texts(message.get("content"), ("text", "refusal"), "content")
    if role == "tool":
        return message_of("tool", content, call_id=text_field(message, "tool_call_id", "a tool message"))
    if role != "assistant":
        return message_of(role, content)
    calls = []
    for call in objects(message.get("tool_calls"), "tool_calls"):
        function = call.get("function")
        if not isinstance(function, dict):
            raise CallRefused("a tool call is no function's")
        id, name = text_field(call, "id", "a tool call"), text_field(function, "name", "a tool call")
        calls.append(call_of(id, name, function.get("arguments")))
    return message_of("assistant", content or None, calls)


def _tools(body: Mapping[str, Any], *, drop: bool) -> Iterator[dict[str, Any]]:
    if body.get("tool_choice") == "none":
        return
    for tool in objects(body.get("tools"), "tools"):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            if drop:
                continue
            raise hosted_tool(str(tool.get("type")))
        yield function_tool(
            text_field(function, "name", "a tool"), function.get("description"), function.get("parameters")
        )
