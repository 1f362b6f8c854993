"""From sampled text to a message: calls between <tool_call> tags, everything else is content.

A block that is no call (broken JSON, no name) stays content, where the policy's mistake can be seen and answered;
nothing that was sampled is thrown away. The message is for agents; training never reads it.
"""

import json
import re
import uuid

from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall

__all__ = ["parse_tool_calls"]

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def parse_tool_calls(text: str) -> Message:
    """The assistant message of a sampled turn, without its stop token.

    Understands `<tool_call>{"name": …, "arguments": …}</tool_call>` blocks, any number of them, anywhere. Arguments
    become JSON text, as OpenAI's clients expect. Beside calls, content loses its outer white space, because templates
    write their own between content and calls; without calls it is the text as sampled.
    """
    calls: list[ToolCall] = []
    outside: list[str] = []
    end = 0
    for block in _BLOCK.finditer(text):
        call = _call(block[1])
        if call is not None:
            calls.append(call)
            outside.append(text[end : block.start()])
            end = block.end()
    if not calls:
        return Message(role="assistant", content=text)
    outside.append(text[end:])
    content = "".join(outside).strip()
    return Message(role="assistant", content=content or None, tool_calls=calls)


def _call(block: str) -> ToolCall | None:
    try:
        call = json.loads(block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not 1 <= len(call["name"]) <= 256:
        return None
    name, arguments = call["name"], call.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    try:
        f"{name}{arguments}".encode()
    except UnicodeEncodeError:
        # An escaped lone surrogate is JSON, but no text that could be sent to anybody.
        return None
    return ToolCall(id=f"call_{uuid.uuid4().hex[:24]}", function=FunctionCall(name=name, arguments=arguments))
