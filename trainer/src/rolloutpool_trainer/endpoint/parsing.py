"""Turns sampled text into a message: what stands between <tool_call> tags becomes a call, the rest is content.

A block that is no call (broken JSON, no name) stays content, so that the agent sees the policy's mistake and can answer
it; nothing that was sampled is thrown away. Only agents read the message. Training reads the token ids.

Each call gets an id of nine hexadecimal digits, such as `3f09ac51e`. Mistral's template refuses any other length, and
other characters than letters and digits; the other families take any id. Nine digits make 69 billion ids, and an id has
to be unique in one conversation only.
"""

import json
import re
import uuid
from collections.abc import Callable, Sequence

from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_common.rendering import ChatTokenizer

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_ID_LENGTH = 9


def parse_tool_calls(text: str) -> Message:
    """Parses a sampled turn.

    Any number of `<tool_call>{"name": …, "arguments": …}</tool_call>` blocks may stand anywhere. Arguments become JSON
    text, because OpenAI's clients expect that. If there are calls, the content loses its outer white space, because
    templates write their own between content and calls.

    Args:
        text: The turn without its stop token.

    Returns:
        The assistant message.
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


def parse_sampled(ids: Sequence[int], tokenizer: ChatTokenizer, parse: Callable[[str], Message]) -> Message:
    """Makes the agent's message of a sampled turn.

    Args:
        ids: What was sampled, at least one id.
        tokenizer: Decodes it.
        parse: Makes the message from the text.
    """
    # The stop token ends the message, but is no part of its text.
    return parse(tokenizer.decode(ids[:-1] if ids[-1] in tokenizer.stop_ids else ids))


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
        # An escaped lone surrogate is valid JSON, but it cannot be encoded as UTF-8.
        return None
    return ToolCall(id=uuid.uuid4().hex[:_ID_LENGTH], function=FunctionCall(name=name, arguments=arguments))
