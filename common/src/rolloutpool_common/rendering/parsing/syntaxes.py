"""How model families write tool calls. Which of these a family uses, its own template shows (`turn_parser`).

| name | a call |
| --- | --- |
| `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Qwen2.5, Qwen3, Hermes |
| `qwen_xml` | `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3.5 |
| `glm` | `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM-4.5 |
| `deepseek` | between its tokens "tool call begin" and "tool call end", a name and JSON: DeepSeek V3, R1 |
| `mistral` | `[TOOL_CALLS][{"name": …, "arguments": …}]` or `[TOOL_CALLS]NAME[ARGS]{…}`: Mistral |
| `llama_json` | the whole answer is `{"name": …, "parameters": …}`: Llama 3 |

A block that is no call (broken JSON, no name) is found as a call that cannot be run, so that the policy is told.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rolloutpool_common.rendering.parsing.found import CallStatus, FoundCall, broken, call_of, decode, usable_name
from rolloutpool_common.rendering.template import Tools

UNCLOSED = "the turn ended before the call was closed"


class Syntax(Protocol):
    """One way to write calls."""

    @property
    def name(self) -> str:
        """As a batch may name it."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Strings that stand around calls and are neither part of one nor content."""
        ...

    def find(self, text: str, tools: Tools) -> list[FoundCall]:
        """Finds the calls, in order; those that cannot be run as well."""
        ...


Read = Callable[[str, tuple[int, int], Tools], FoundCall]


@dataclass(frozen=True)
class _Tagged:
    """Each call stands between two tags."""

    name: str
    opens: str
    closes: str
    read: Read
    marks: tuple[str, ...] = ()

    def find(self, text: str, tools: Tools) -> list[FoundCall]:
        found = []
        at = 0
        while (start := text.find(self.opens, at)) >= 0:
            body = start + len(self.opens)
            end = text.find(self.closes, body)
            if end < 0:
                found.append(broken(text[body:], (start, len(text)), UNCLOSED, CallStatus.UNCLOSED))
                break
            at = end + len(self.closes)
            found.append(self.read(text[body:end], (start, at), tools))
        return found


def _read_json(body: str, span: tuple[int, int], tools: Tools) -> FoundCall:
    del tools
    try:
        value = decode(body)
    except ValueError as error:
        return broken(body, span, f"it is not JSON: {error}")
    return call_of(value, body, span)


_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _read_xml(body: str, span: tuple[int, int], tools: Tools) -> FoundCall:
    function = _FUNCTION.fullmatch(body)
    if function is None:
        return broken(body, span, "a tool call must be <function=NAME>…</function>")
    return _of_pairs(function[1].strip(), dict(_PARAMETER.findall(function[2])), body, span, tools)


_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def _read_glm(body: str, span: tuple[int, int], tools: Tools) -> FoundCall:
    name, _, rest = body.partition("<arg_key>")
    if "<" in name or "{" in name:
        return broken(body, span, "a tool call must be a name, and then <arg_key> and <arg_value>")
    pairs = {key.strip(): value for key, value in _PAIR.findall(f"<arg_key>{rest}")}
    return _of_pairs(name.strip(), pairs, body, span, tools)


def _of_pairs(name: str, pairs: Mapping[str, str], raw: str, span: tuple[int, int], tools: Tools) -> FoundCall:
    """A call whose arguments are written as texts; the tool's own schema says which of them are texts indeed."""
    types = _types(name, tools)
    return call_of({"name": name, "arguments": {k: _value(v, types.get(k)) for k, v in pairs.items()}}, raw, span)


def _types(name: str, tools: Tools) -> dict[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: schema.get("type") for key, schema in properties.items() if isinstance(schema, dict)}
    return {}


def _value(text: str, kind: Any) -> Any:
    if kind == "string":
        return text
    try:
        return decode(text)
    except ValueError:
        return text


_SEPARATOR = "<\uff5ctool▁sep\uff5c>"
_FENCED = re.compile(r"(.*?)\n```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)


def _read_deepseek(body: str, span: tuple[int, int], tools: Tools) -> FoundCall:
    before, separator, after = body.partition(_SEPARATOR)
    # V3: `function`, separator, name, and the arguments in a fence. V3.1: name, separator, arguments.
    fenced = _FENCED.fullmatch(after)
    name, arguments = (fenced[1], fenced[2]) if fenced is not None else (before, after)
    if not separator or not usable_name(name.strip()):
        return broken(body, span, "it has no name")
    try:
        return call_of({"name": name.strip(), "arguments": decode(arguments)}, body, span)
    except ValueError as error:
        return broken(body, span, f"its arguments are not JSON: {error}")


_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class _Mistral:
    """Calls follow a mark up to the end: as one JSON list, or each as a name with arguments."""

    name: str = "mistral"
    mark: str = "[TOOL_CALLS]"
    marks: tuple[str, ...] = ()

    def find(self, text: str, tools: Tools) -> list[FoundCall]:
        del tools
        start = text.find(self.mark)
        if start < 0:
            return []
        found: list[FoundCall] = []
        for piece in text[start + len(self.mark) :].split(self.mark):
            end = len(text)
            found += (
                self._of_list(piece, (start, end)) if piece.lstrip()[:1] in "[{" else self._named(piece, (start, end))
            )
        return found

    def _of_list(self, piece: str, span: tuple[int, int]) -> list[FoundCall]:
        try:
            value, _ = _DECODER.raw_decode(piece.lstrip())
        except (ValueError, RecursionError) as error:
            return [_unfinished(piece, span, str(error))]
        return [call_of(item, json.dumps(item), span) for item in (value if isinstance(value, list) else [value])]

    def _named(self, piece: str, span: tuple[int, int]) -> list[FoundCall]:
        head, brace, rest = piece.partition("{")
        name = head.partition("[")[0].strip()
        if not usable_name(name):
            return [broken(piece, span, "it has no name")]
        try:
            arguments, _ = _DECODER.raw_decode(brace + rest)
        except (ValueError, RecursionError) as error:
            return [_unfinished(piece, span, str(error))]
        return [call_of({"name": name, "arguments": arguments}, piece, span)]


@dataclass(frozen=True)
class _WholeJson:
    """The whole answer is a call, or several with a semicolon between them."""

    name: str = "llama_json"
    marks: tuple[str, ...] = ("<|python_tag|>",)

    def find(self, text: str, tools: Tools) -> list[FoundCall]:
        del tools
        start = text.rfind(self.marks[0]) + len(self.marks[0]) if self.marks[0] in text else 0
        if not _LLAMA.match(text, start):
            return []
        found: list[FoundCall] = []
        at = start
        while at < len(text):
            if text[at] in " \n\t\r;,":
                at += 1
                continue
            try:
                value, end = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                return [*found, _unfinished(text[at:], (at, len(text)), str(error))]
            found.append(call_of(value, text[at:end], (at, end)))
            at = end
        return found


_LLAMA = re.compile(r'\s*\{\s*"(?:name|type|function|parameters|arguments)"\s*:')
"""How an answer begins that is a call; any other JSON is an answer."""


def _unfinished(raw: str, span: tuple[int, int], error: str) -> FoundCall:
    """A call whose JSON breaks off, or is broken: which of the two, only the turn's end tells."""
    return broken(raw, span, f"it is not JSON: {error}", CallStatus.UNCLOSED)


HERMES: Syntax = _Tagged("hermes", "<tool_call>", "</tool_call>", _read_json)
SYNTAXES: tuple[Syntax, ...] = (
    HERMES,
    _Tagged("qwen_xml", "<tool_call>", "</tool_call>", _read_xml),
    _Tagged("glm", "<tool_call>", "</tool_call>", _read_glm),
    _Tagged(
        "deepseek",
        "<\uff5ctool▁call▁begin\uff5c>",
        "<\uff5ctool▁call▁end\uff5c>",
        _read_deepseek,
        ("<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"),
    ),
    _Mistral(),
    _WholeJson(),
)
"""In the order in which they are tried."""
