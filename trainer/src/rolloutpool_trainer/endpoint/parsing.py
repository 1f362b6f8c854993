"""Turns sampled text into a message: what the policy wrote as a call becomes one, the rest is content.

1. How a policy writes calls, its chat template shows (`rendering/parsing`): between <tool_call> tags, as Llama's JSON,
   in Mistral's list, and so on. What stands between <tool_call> tags is a call for every model.
2. What is no call (broken JSON, no name) stays content, so that the agent sees the policy's mistake and can answer it;
   nothing that was sampled is thrown away. Only agents read the message. Training reads the token ids.
3. Each call gets an id of nine hexadecimal digits, such as `3f09ac51e`. Mistral's template refuses any other length,
   and other characters than letters and digits; the other families take any id. Nine digits make 69 billion ids, and
   an id has to be unique in one conversation only.
"""

import logging
import uuid
from collections.abc import Callable, Sequence

from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.parsing.found import CallStatus
from rolloutpool_common.rendering.parsing.syntaxes import HERMES, Syntax
from rolloutpool_common.rendering.parsing.turn_parser import known_syntax, without_calls
from rolloutpool_common.rendering.template import Tools

_log = logging.getLogger(__name__)
_ID_LENGTH = 9


def parse_tool_calls(text: str) -> Message:
    """Parses a sampled turn whose calls stand between tags.

    Any number of `<tool_call>{"name": …, "arguments": …}</tool_call>` blocks may stand anywhere. Arguments become JSON
    text, because OpenAI's clients expect that. If there are calls, the content loses its outer white space, because
    templates write their own between content and calls.

    Args:
        text: The turn without its stop token.

    Returns:
        The assistant message.
    """
    return _parse(text, HERMES, ()) or Message(role="assistant", content=text)


class SampledParser:
    """Makes the agent's messages of sampled turns: by the trainer's own function, or as the template shows."""

    def __init__(self, tokenizer: ChatTokenizer, parse: Callable[[str], Message] | None) -> None:
        self._tokenizer, self._parse = tokenizer, parse
        self._syntax = known_syntax(tokenizer) if parse is None else None
        if parse is None and self._syntax is None:
            _log.warning(
                "it is not known how %s writes tool calls, so only <tool_call>{json}</tool_call> is one; give `parse`",
                tokenizer.name,
            )

    def message(self, ids: Sequence[int], tools: Tools | None) -> Message:
        """Returns the message of a turn; `ids` is what was sampled, at least one id."""
        # The stop token ends the message, but is no part of its text.
        text = self._tokenizer.decode(ids[:-1] if ids[-1] in self._tokenizer.stop_ids else ids)
        if self._parse is not None:
            return self._parse(text)
        found = _parse(text, self._syntax, tools or ()) if self._syntax is not None else None
        return found or parse_tool_calls(text)


def _parse(text: str, syntax: Syntax, tools: Tools) -> Message | None:
    """Returns None where there is no call."""
    calls = [call for call in syntax.find(text, tools) if call.status is CallStatus.OK]
    if not calls:
        return None
    content = without_calls(text, calls, syntax.marks).strip()
    made = [
        ToolCall(id=uuid.uuid4().hex[:_ID_LENGTH], function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in calls
    ]
    return Message(role="assistant", content=content or None, tool_calls=made)
