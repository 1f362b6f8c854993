"""A parser by a `response_template`: a description, in the form of transformers, of what a model writes.

It comes from the tokenizer or from the batch. The library takes a call that was never closed for one that was, and
raises for a call that is broken; so:

1. The text is looked at once more, with a word after it that no model writes. A call that is still open when the word
   comes was not closed.
2. Where the library raises, the turn is one call that cannot be run and says why.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from transformers.utils.chat_parsing import ResponseParser, parse_response
from transformers.utils.chat_parsing.response_templates import load_response_template

from rolloutpool_common.rendering.parsing.found import BROKEN_NAME, CallStatus, Found, FoundCall, broken, call_of
from rolloutpool_common.rendering.template import Tools

_CALLS = "tool_calls"
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_BORDERS = ("region_open", "region_close")
_WORD = secrets.token_hex(16)


class TemplateParser:
    """Parses by one template."""

    def __init__(self, template: Mapping[str, Any]) -> None:
        """Reads the template; raises ValueError where it is none."""
        try:
            self._template = load_response_template(dict(template))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def find(self, text: str, *, before: str, tools: Tools) -> Found:
        """See `TextParser`."""
        try:
            definitions: list[dict[Any, Any] | Callable[..., Any]] = [dict(tool) for tool in tools]
            message = parse_response(text, self._template, prefix=before, tools=definitions)
            events = ResponseParser(self._template, prefix=before).feed(text + _WORD)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            # It breaks off where the turn was cut, so it may as well be one that was not closed.
            why = str(error).partition("\n")[0]
            return Found("", (broken(text, (0, len(text)), why, CallStatus.UNCLOSED),))
        reasoning = next((_text(message[name]) for name in _THOUGHTS if message.get(name)), None)
        calls = [self._call(call, text) for call in message.get(_CALLS) or ()]
        borders = [(event["type"], event["field"]) for event in events if event["type"] in _BORDERS]
        if calls and borders and borders[-1] == ("region_open", _CALLS):
            calls[-1] = broken(text, (0, len(text)), "the turn ended before the call was closed", CallStatus.UNCLOSED)
        return Found(_text(message.get("content")), tuple(calls), reasoning)

    def _call(self, call: Any, text: str) -> FoundCall:
        span = 0, len(text)
        if not isinstance(call, dict):
            return FoundCall(*span, BROKEN_NAME, str(call), CallStatus.INVALID, "Invalid tool call, not run: no object")
        return call_of(call, json.dumps(call, default=str), span)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
