"""TurnParser: from the ids of a sampled turn to a message.

Which parser a rollout gets:

1. What the batch says (`response_template`): a template in the form of transformers, the name of a known syntax, or
   `renderers/NAME`.
2. The tokenizer's own `response_template`, where it has one.
3. A known syntax (`syntaxes`), if the chat template itself writes calls in it. A message with a call is rendered; a
   syntax is right if it finds exactly this call in the text. So nothing depends on a model's name.
4. A parser of the package `renderers`, if that is installed and names one for this tokenizer, and if it finds the
   same call (`renderers_package`).
5. Else the rollout is refused before anything is sampled, unless it may call no tools. Then all text is content.

What stands between `<think>` and `</think>` at the start of a turn is no content and holds no calls.

A call that cannot be run becomes a call of the message all the same, with a fault that the policy reads in the place of
a result. One that the policy could not close, because its turn was cut, is content and no call.

Each call gets an id of nine hexadecimal digits, as Mistral's template demands.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from rolloutpool_common.errors import TemplateUnusable
from rolloutpool_common.protocol.messages import CALL_FAULTS, FunctionCall, Message, ToolCall
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.parsing import renderers_package
from rolloutpool_common.rendering.parsing.found import (
    CallStatus,
    Found,
    FoundCall,
    ParsedCall,
    ParsedTurn,
    TextParser,
    decode,
)
from rolloutpool_common.rendering.parsing.response_template import TemplateParser
from rolloutpool_common.rendering.parsing.syntaxes import SYNTAXES, Syntax
from rolloutpool_common.rendering.template import Tools
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

_ID_LENGTH = 9
_PROBE = "probe_of_calls"
_ARGUMENTS = {"argument": "value of it"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"argument": {"type": "string", "description": "Any."}}},
    },
}
_ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Probe."}]
_CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "probecall", "type": "function", "function": {"name": _PROBE, "arguments": dict(_ARGUMENTS)}}
    ],
}
_ANSWERED: dict[str, Any] = {"role": "tool", "tool_call_id": "probecall", "name": _PROBE, "content": "1"}


class ParserMissing(TemplateUnusable):
    """It is not known how this model writes tool calls; set `response_template`, or allow no tools (`tools: []`)."""


class TurnParser:
    """Parses the turns of one rollout."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        parser: TextParser | renderers_package.IdsParser,
        tools: Tools,
    ) -> None:
        """Use `TurnParser.of`."""
        self._tokenizer = tokenizer
        self._parser = parser
        self._tools = tools

    @classmethod
    def of(
        cls,
        tokenizer: ChatTokenizer,
        tools: Tools,
        response_template: Mapping[str, Any] | str | None = None,
    ) -> "TurnParser":
        """Chooses the parser of a rollout."""
        if response_template is None:
            response_template = getattr(tokenizer.reference, "response_template", None)
        if isinstance(response_template, str) and response_template.startswith(renderers_package.PREFIX):
            return cls(tokenizer, _named_renderer(tokenizer, response_template), tools)
        if isinstance(response_template, str):
            named = {syntax.name: syntax for syntax in SYNTAXES}.get(response_template)
            if named is None:
                known = ", ".join(syntax.name for syntax in SYNTAXES)
                raise ParserMissing(f"response_template: no syntax {response_template[:80]!r}; known are {known}")
            return cls(tokenizer, _SyntaxParser(named, _thinks(tokenizer)), tools)
        if response_template is not None:
            try:
                return cls(tokenizer, TemplateParser(response_template), tools)
            except ValueError as error:
                raise ParserMissing(f"response_template cannot be used: {str(error)[:300]}") from None
        syntax = known_syntax(tokenizer)
        if syntax is None and tools:
            renderer = _proved_renderer(tokenizer)
            if renderer is None:
                further = "" if renderers_package.is_installed() else " The package `renderers` knows further models."
                raise ParserMissing(f"{tokenizer.name!r}: {ParserMissing.__doc__}{further}")
            return cls(tokenizer, renderer, tools)
        return cls(tokenizer, _SyntaxParser(syntax, _thinks(tokenizer)), tools)

    def parse(
        self, ids: Sequence[int], *, after: Sequence[int], whole: bool, call_ids: Sequence[str] = ()
    ) -> ParsedTurn:
        """Makes a message of a sampled turn."""
        tokenizer = self._tokenizer
        spoken = ids[:-1] if ids and ids[-1] in tokenizer.stop_ids else ids
        text = tokenizer.decode(spoken)
        if isinstance(self._parser, renderers_package.IdsParser):
            found = self._parser.find(spoken, after=after, text=text, tools=self._tools)
        else:
            found = self._parser.find(text, before=tokenizer.decode(after), tools=self._tools)
        return _turn(found, text, whole=whole, call_ids=call_ids)


class _SyntaxParser:
    """Parses by a known syntax; with none, all text is content."""

    def __init__(self, syntax: Syntax | None, thinks: bool) -> None:
        self._syntax = syntax
        self._thinks = thinks

    def find(self, text: str, *, before: str, tools: Tools) -> Found:
        reasoning, start = split_thoughts(text, before) if self._thinks else (None, 0)
        rest = text[start:]
        if reasoning is not None:
            rest = rest.lstrip("\n")
            start = len(text) - len(rest)
        calls = self._syntax.find(rest, tools) if self._syntax is not None else []
        moved = tuple(_moved(call, start) for call in calls)
        marks = self._syntax.marks if self._syntax is not None and calls else ()
        return Found(without_calls(rest, calls, marks), moved, reasoning)


def _turn(found: Found, text: str, *, whole: bool, call_ids: Sequence[str]) -> ParsedTurn:
    calls = [call for call in found.calls if whole or call.status is not CallStatus.UNCLOSED]
    # What could not be closed stays in the text. It is the end of it, or all of it.
    cut = found.calls[len(calls) :]
    content = found.content + "".join(text[call.start : call.end] for call in cut)
    if cut and cut[0].start == 0:
        content = text
    made = [
        ToolCall(
            id=call_ids[place] if place < len(call_ids) else uuid.uuid4().hex[:_ID_LENGTH],
            function=FunctionCall(name=call.name, arguments=call.arguments),
        )
        for place, call in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if made:
        # Templates write their own white space between content and calls.
        message = {**message, "content": content.strip() or None, "tool_calls": made}
    if found.reasoning is not None:
        message["reasoning_content"] = found.reasoning
    if faults := {tool_call.id: call.fault for tool_call, call in zip(made, calls, strict=True) if call.fault}:
        message[CALL_FAULTS] = faults
    return ParsedTurn(
        Message.model_validate(message).wire(),
        tuple(
            ParsedCall(tool_call.id, call.status, (call.start, call.end))
            for tool_call, call in zip(made, calls, strict=True)
        ),
    )


def _moved(call: FoundCall, by: int) -> FoundCall:
    return FoundCall(call.start + by, call.end + by, call.name, call.arguments, call.status, call.fault)


def without_calls(text: str, calls: Sequence[FoundCall], marks: Sequence[str]) -> str:
    """Returns a text without its calls and the marks around them."""
    pieces, at = [], 0
    for call in calls:
        pieces.append(text[at : call.start])
        at = max(at, call.end)
    content = "".join((*pieces, text[at:]))
    for mark in marks:
        content = content.replace(mark, "")
    return content


_known: "WeakKeyDictionary[ChatTokenizer, Syntax | None]" = WeakKeyDictionary()


def known_syntax(tokenizer: ChatTokenizer) -> Syntax | None:
    """Returns the syntax in which a tokenizer's template writes calls; None where it is unknown."""
    if tokenizer not in _known:
        texts = list(_written(tokenizer))
        fitting = (syntax for syntax in SYNTAXES if any(_finds_probe(syntax, text) for text in texts))
        _known[tokenizer] = next(fitting, None) or _marked(tokenizer)
    return _known[tokenizer]


def _written(tokenizer: ChatTokenizer) -> list[str]:
    """Returns what the template writes for an assistant message with one call."""
    texts = []
    for messages in ([*_ASKED, _CALLED], [*_ASKED, _CALLED, _ANSWERED]):
        for tools in ([_TOOL], None):
            with suppress(TemplateRefused):
                asked = tokenizer.render_text(_ASKED, tools=tools)
                text = tokenizer.render_conversation(messages, tools=tools).text
                answer = text[len(asked) :] if text.startswith(asked) else text.rpartition(_ASKED[0]["content"])[2]
                answer = answer.rstrip().removesuffix(tokenizer.close_token or "")
                texts.append(answer)
    return texts


def _finds_probe(syntax: Syntax, text: str) -> bool:
    return _is_probe(syntax.find(text, [_TOOL]))


def _is_probe(found: Sequence[FoundCall]) -> bool:
    if len(found) != 1 or found[0].status is not CallStatus.OK:
        return False
    with suppress(ValueError):
        return found[0].name == _PROBE and bool(decode(found[0].arguments) == _ARGUMENTS)
    return False


_renderers: "WeakKeyDictionary[ChatTokenizer, renderers_package.IdsParser | None]" = WeakKeyDictionary()


def needs_renderers(tokenizer: ChatTokenizer, response_template: Mapping[str, Any] | str | None) -> bool:
    """Whether the parser of a rollout may be one of `renderers`, which is installed and not imported yet."""
    named = isinstance(response_template, str) and response_template.startswith(renderers_package.PREFIX)
    unknown = response_template is None and known_syntax(tokenizer) is None
    return (named or unknown) and not renderers_package.is_loaded() and renderers_package.is_installed()


def _named_renderer(tokenizer: ChatTokenizer, response_template: str) -> renderers_package.IdsParser:
    name = response_template.removeprefix(renderers_package.PREFIX)
    try:
        return renderers_package.named_parser(tokenizer, name)
    except ImportError:
        raise ParserMissing(
            f"response_template: {response_template[:80]!r} needs the package `renderers` on the workers"
        ) from None
    except ValueError as error:
        raise ParserMissing(f"response_template: {response_template[:80]!r} cannot be used: {error}") from None


def _proved_renderer(tokenizer: ChatTokenizer) -> renderers_package.IdsParser | None:
    """Returns the parser that `renderers` names for a tokenizer, if it finds what the chat template writes."""
    if tokenizer not in _renderers:
        _renderers[tokenizer] = None
        with suppress(ImportError, ValueError):
            name = renderers_package.family_of(tokenizer)
            parser = None if name is None else renderers_package.named_parser(tokenizer, name)
            if parser is not None and any(_parses_probe(tokenizer, parser, text) for text in _written(tokenizer)):
                _renderers[tokenizer] = parser
    return _renderers[tokenizer]


def _parses_probe(tokenizer: ChatTokenizer, parser: renderers_package.IdsParser, text: str) -> bool:
    ids = tokenizer.reference.encode(text, add_special_tokens=False)
    return _is_probe(parser.find(ids, after=(), text=text, tools=[_TOOL]).calls)


def _marked(tokenizer: ChatTokenizer) -> Syntax | None:
    """For a template that cannot render a finished call: a syntax whose marks are tokens of the vocabulary."""
    known = tokenizer.codec.control_ids
    return next((s for s in SYNTAXES if len(s.marks) > 1 and all(mark in known for mark in s.marks)), None)


def _thinks(tokenizer: ChatTokenizer) -> bool:
    """Whether the model's template, or its vocabulary, knows thoughts."""
    template = tokenizer.reference.chat_template
    sources = list(template.values()) if isinstance(template, dict) else [template]
    return CLOSES in tokenizer.codec.vocabulary.added or any(CLOSES in str(source) for source in sources)


OPENS, CLOSES = "<think>", "</think>"


class Split(NamedTuple):
    """A turn's text in two."""

    reasoning: str | None
    """None where the policy did not think."""
    start: int
    """Where the rest begins."""


def split_thoughts(text: str, before: str) -> Split:
    """Splits thoughts off."""
    opened = before.rstrip().endswith(OPENS)
    start = len(text) - len(text.lstrip())
    if text.startswith(OPENS, start):
        start += len(OPENS)
    elif not opened:
        return Split(None, 0)
    end = text.find(CLOSES, start)
    if end < 0:
        return Split(text[start:].strip("\n"), len(text))
    return Split(text[start:end].strip("\n"), end + len(CLOSES))
