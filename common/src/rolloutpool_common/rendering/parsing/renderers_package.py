"""Parsers of the package `renderers`, for families whose calls no syntax here knows (kimi-k2, gpt-oss, minimax-m2 …).

It is used where somebody has installed it beside the worker; nothing here depends on it. It takes seconds to import, so
that is done once per process, when the first rollout needs it.

- A batch may name one: `response_template: "renderers/kimi-k2"`.
- Without that, the package's own table says which one a tokenizer's name stands for. A name proves nothing, so the
  parser must also find a call that the tokenizer's chat template has written.

It parses ids and reports a status for each call that was tried. Its statuses become ours; a tool that it does not know
is a call like any other, because whoever runs the tools says so.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.parsing.found import CallStatus, Found, FoundCall, broken, call_of
from rolloutpool_common.rendering.parsing.syntaxes import UNCLOSED
from rolloutpool_common.rendering.template import Tools
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

PREFIX = "renderers/"
"""In front of the name of a parser, in `response_template`."""
_CALLS = frozenset({"ok", "unknown_tool"})
_UNCLOSED = "unclosed_block"


def is_installed() -> bool:
    """Whether the package is there; imports nothing."""
    try:
        return importlib.util.find_spec("renderers") is not None
    except ValueError:
        return False


def is_loaded() -> bool:
    """Whether it was imported already."""
    return sys.modules.get("renderers.base") is not None


def load() -> None:
    """Imports it, which takes seconds; raises ImportError."""
    importlib.import_module("renderers.base")
    importlib.import_module("renderers.configs")


def family_of(tokenizer: ChatTokenizer) -> str | None:
    """Returns the parser that the package names for this tokenizer; None where it names none."""
    load()
    from renderers.base import MODEL_RENDERER_MAP

    found = MODEL_RENDERER_MAP.get(tokenizer.name)
    return None if found is None else str(found)


def named_parser(tokenizer: ChatTokenizer, name: str) -> "IdsParser":
    """Makes a parser for a tokenizer."""
    load()
    from renderers.base import create_renderer
    from renderers.configs import config_from_name

    try:
        # Never `auto`, which would ask the network about names that it does not know.
        config = config_from_name(name) if name != "auto" else None
        if config is None:
            raise ValueError("it must be named")
        return IdsParser(create_renderer(tokenizer.reference, config))
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None


class IdsParser:
    """Takes apart the ids of a turn."""

    def __init__(self, renderer: Any) -> None:
        """Takes a renderer of the package."""
        self._renderer = renderer

    def find(self, ids: Sequence[int], *, after: Sequence[int], text: str, tools: Tools) -> Found:
        """Finds thoughts, calls and content."""
        functions = [tool.get("function", tool) for tool in tools]
        try:
            parsed = self._renderer.parse_response(list(ids), tools=functions, prompt_ids=list(after) or None)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            return Found("", (broken(text, (0, len(text)), why, CallStatus.UNCLOSED),))
        calls: list[FoundCall] = []
        content, at = parsed.content or "", 0
        for tried in parsed.tool_calls:
            raw = tried.raw or ""
            start = text.find(raw, at) if raw else -1
            span = (start, start + len(raw)) if start >= 0 else (at, len(text))
            if str(tried.status) == _UNCLOSED:
                # With its opening tag, which is not in `raw`: what a limit has cut stays in the text.
                span = (at, len(text))
            at = span[1]
            calls.append(_call(tried, raw, span))
            if calls[-1].fault and raw:
                # What cannot be run may have stayed in the content as well.
                content = content.replace(raw, "")
        return Found(content, tuple(calls), parsed.reasoning_content or None)


def _call(tried: Any, raw: str, span: tuple[int, int]) -> FoundCall:
    status = str(tried.status)
    if status in _CALLS and isinstance(tried.arguments, Mapping | str):
        return call_of({"name": tried.name, "arguments": tried.arguments}, raw, span)
    if status == _UNCLOSED:
        return broken(raw, span, UNCLOSED, CallStatus.UNCLOSED)
    return broken(raw, span, f"it is not written as this model writes calls ({status})")
