"""Chat templates as a function from messages to text. Nothing is tokenised here.

Messages arrive in OpenAI's form. Templates disagree about its corners, so `normalise` brings them into the one form
that all templates read alike: keys whose value is null are dropped, null content becomes "", a call's arguments become
an object, and an empty list of calls is left out. Content in parts becomes what this template takes (`content_parts`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from jinja2 import Environment, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from rolloutpool_common.rendering.content_parts import ContentParts
from rolloutpool_common.rendering.errors import RenderFailed, RenderTooCostly
from rolloutpool_common.rendering.quotes import without_quotes
from rolloutpool_common.rendering.render_budget import RenderBudget
from rolloutpool_common.rendering.transformers_compat import prepare_sandbox

__all__ = ["SAMPLE_TOOL", "Message", "Template", "normalise", "parse_arguments"]

Message = Mapping[str, Any]

SAMPLE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}},
    },
}
"""A tool that every template takes."""

_LISTS = (list, tuple)
_REASON_LIMIT = 300
_ROLES_SHOWN = 12
"""The last roles of a refused conversation that its error names; a long one has hundreds."""


class Template:
    """One chat template of a tokenizer. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str, budget: RenderBudget) -> None:
        """Takes the Jinja text `source`; the tokenizer supplies the special tokens and the filters."""
        self._budget = budget
        self.source = source
        self._tokenizer = tokenizer

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Literals that the template looks for in texts, such as `/no_think`: a message that says one may switch it."""
        return _tested_words(self.source)

    @property
    def names(self) -> dict[str, str]:
        """Special tokens that templates are given by name, such as `eos_token`."""
        return {name: str(text) for name, text in self._tokenizer.special_tokens_map.items()}

    @cached_property
    def _content_parts(self) -> ContentParts:
        def render(messages: Sequence[Message], tools: bool) -> str:
            return self.render(messages, tools=[SAMPLE_TOOL] if tools else None)

        return ContentParts(self.source, self.words, render)

    def normalise(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Copies the messages into normal form, with content in the form that this template takes.

        Args:
            messages: In either form.
            tools: What the policy may call.

        Raises:
            PartsRefused: The template would drop or change parts of content.
        """
        return normalise(self.settle_parts(messages, tools))

    def settle_parts(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Sequence[Message]:
        """As `normalise`, but only content in parts is changed; without any, these are the messages as given."""
        # A loop, because each render comes here, and a generator costs as much again.
        for message in messages:
            if isinstance(message.get("content"), _LISTS):
                break
        else:
            return messages
        return [
            self._content_parts.settle(message, bool(tools)) if isinstance(message.get("content"), _LISTS) else message
            for message in messages
        ]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Renders a conversation.

        Args:
            messages: In normal form.
            tools: What the policy may call.
            template_kwargs: Further variables of the template.
            generation_prompt: Whether to end with the header after which the policy speaks.

        Raises:
            RenderFailed: The template raised an error; the message holds its reason.
            RenderTooCostly: It took too much CPU time.
        """
        prepare_sandbox(self.source)
        try:
            with self._budget.limit(messages):
                return str(
                    self._tokenizer.apply_chat_template(
                        [dict(message) for message in messages],
                        tools=[dict(tool) for tool in tools] if tools else None,
                        chat_template=self.source,
                        add_generation_prompt=generation_prompt,
                        tokenize=False,
                        **(template_kwargs or {}),
                    )
                )
        except RenderTooCostly:
            raise
        except Exception as error:  # a template is foreign code and may raise anything
            roles = ", ".join(str(message.get("role"))[:_REASON_LIMIT] for message in messages[-_ROLES_SHOWN:])
            earlier = "… " if len(messages) > _ROLES_SHOWN else ""
            reason = without_quotes(str(error)[:_REASON_LIMIT], messages, self.source)
            raise RenderFailed(
                f"The chat template refused the roles [{earlier}{roles}]: {type(error).__name__}: {reason}"
            ) from None


def normalise(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies the messages into normal form."""
    return [_message(message) for message in messages]


def parse_arguments(messages: Sequence[Message]) -> list[Message]:
    """Copies messages as servers such as vLLM do before they render: a call's arguments become what their JSON says.

    Args:
        messages: As they came over the wire, where arguments are text. Text that is no JSON stays.
    """
    return [_with_parsed_arguments(message) for message in messages]


def _with_parsed_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls or all(isinstance(call["function"].get("arguments"), Mapping) for call in calls):
        return message
    return {**message, "tool_calls": [_with_value(call) for call in calls]}


def _with_value(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["function"].get("arguments") or "{}"
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _message(message: Message) -> dict[str, Any]:
    result = {key: value for key, value in message.items() if value is not None}
    result.setdefault("content", "")
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = [_call(call) for call in calls]
    return result


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", {}))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        function["arguments"] = parsed if isinstance(parsed, dict) else arguments
    return {
        "type": "function",
        **{key: value for key, value in call.items() if value is not None},
        "function": function,
    }


_TESTS = frozenset({"startswith", "endswith", "split", "rsplit", "find", "index", "replace", "partition", "rpartition"})
_LONGEST_WORD = 80
_MOST_WORDS = 16


_Token = tuple[str, str]
"""Kind and text, as the lexer has them."""
_WORDS_KINDS = frozenset({"string", "name", "operator"})


@lru_cache
def _tested_words(source: str) -> tuple[str, ...]:
    """Finds literals that stand before `in` or in a call such as `startswith`, in order of appearance.

    Where a name stands there, the literals that it is set to follow: `{% set off = '/quiet' %}`.
    """
    try:
        lexed = [(kind, value) for _, kind, value in Environment().lex(source)]
    except TemplateSyntaxError:
        return ()
    tokens = [token for token in lexed if token[0] in _WORDS_KINDS]
    found: dict[str, None] = {}
    names: set[str] = set()
    open_test, before = False, ""
    for (kind, value), (next_kind, next_value) in pairwise([*tokens, ("operator", ")")]):
        if kind == "name" and value in _TESTS and next_value == "(":
            open_test = True
        elif kind == "operator" and value == ")":
            open_test = False
        elif open_test or (next_kind, next_value) in (("name", "in"), ("name", "not")):
            if kind == "string":
                found[_literal(value)] = None
            # `for word in …` tests nothing.
            elif kind == "name" and before != "for":
                names.add(value)
        before = value
    words = [*found, *(word for word in _named_literals(lexed, names) if word not in found)]
    return tuple(word for word in words if word and len(word) <= _LONGEST_WORD)[:_MOST_WORDS]


def _literal(value: str) -> str:
    text = value[1:-1].encode().decode("unicode_escape", "replace") if value.isascii() else value[1:-1]
    return text.strip()


def _named_literals(lexed: Sequence[_Token], names: set[str]) -> list[str]:
    """The literals that names stand for, also by way of other names; without keys, roles and other identifiers."""
    statements: list[list[_Token]] = [[]]
    inside = False
    for token in lexed:
        if token[0] in ("block_begin", "block_end"):
            inside = token[0] == "block_begin"
            statements.append([])
        elif inside and token[0] in _WORDS_KINDS:
            statements[-1].append(token)
    given: dict[str, list[_Token]] = {}
    for statement in statements:
        if len(statement) > 3 and statement[0][1] in ("set", "for") and statement[2][1] in ("=", "in"):
            given.setdefault(statement[1][1], []).extend(statement[3:])
    found: dict[str, None] = {}
    open_names, seen = list(names & given.keys()), set(names)
    while open_names:
        for kind, value in given[open_names.pop()]:
            if kind == "string" and not _literal(value).isidentifier():
                found[_literal(value)] = None
            elif kind == "name" and value in given and value not in seen:
                seen.add(value)
                open_names.append(value)
    return list(found)
