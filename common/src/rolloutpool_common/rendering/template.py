"""Chat templates as a function from messages to text. Nothing is tokenised here.

Messages arrive in OpenAI's form. Templates disagree about its corners, so `normalise` brings them into the one form
that all templates read alike: keys whose value is null are dropped, null content becomes "", a call's arguments become
an object, and an empty list of calls is left out. Content in parts becomes the text that it says: templates disagree
about lists, and print, drop or trim them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any

from jinja2 import nodes
from transformers import PreTrainedTokenizerBase

from rolloutpool_common.protocol.content import content_fault, joined_text
from rolloutpool_common.rendering.errors import PartsRefused, RenderFailed, RenderTooCostly
from rolloutpool_common.rendering.quotes import without_quotes
from rolloutpool_common.rendering.render_budget import RenderBudget
from rolloutpool_common.rendering.transformers_compat import parse_template, prepare_sandbox

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

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

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Renders a conversation."""
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
    return [_message(message) for message in join_parts(messages)]


def join_parts(messages: Sequence[Message]) -> Sequence[Message]:
    """As `normalise`, but only content in parts is changed; without any, these are the messages as given."""
    # A loop, because each render comes here, and a generator costs as much again.
    for message in messages:
        if isinstance(message.get("content"), _LISTS):
            return [_joined(message) if isinstance(message.get("content"), _LISTS) else message for message in messages]
    return messages


def _joined(message: Message) -> Message:
    if (fault := content_fault(message["content"])) is not None:
        raise PartsRefused(f"A message of the role {message.get('role')} has {fault}.")
    return {**message, "content": joined_text(message["content"])}


def parse_arguments(messages: Sequence[Message]) -> list[Message]:
    """Copies messages as servers such as vLLM do before they render: a call's arguments become what their JSON says."""
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


@lru_cache
def _tested_words(source: str) -> tuple[str, ...]:
    """Finds literals that stand before `in` or in a call such as `startswith`, in order of appearance.

    Where a name stands there, the literals that it is set to follow: `{% set off = '/quiet' %}`.
    """
    tree = parse_template(source)
    if tree is None:
        return ()
    sought: list[nodes.Node] = []
    given: dict[str, list[nodes.Node]] = {}
    for node in tree.find_all((nodes.Assign, nodes.Call, nodes.Compare, nodes.Filter, nodes.For)):
        match node:
            case nodes.Compare(expr=expr, ops=[nodes.Operand(op="in" | "notin"), *_]):
                sought.append(expr)
            case nodes.Call(node=nodes.Getattr(attr=name), args=args) | nodes.Filter(name=name, args=args):
                sought += args if name in _TESTS else []
            case (
                nodes.Assign(target=nodes.Name(name=name), node=value)
                | nodes.For(target=nodes.Name(name=name), iter=value)
            ):
                given.setdefault(name, []).extend((value, *value.find_all((nodes.Const, nodes.Name))))
    words = [part.value for part in sought if isinstance(part, nodes.Const)]
    # A name may stand for another one. What looks like a name itself is a key or a role.
    while sought:
        named = given.pop(part.name, []) if isinstance(part := sought.pop(0), nodes.Name) else []
        words += [node.value for node in named if isinstance(node, nodes.Const) and not str(node.value).isidentifier()]
        sought += named
    stripped = dict.fromkeys(word.strip() for word in words if isinstance(word, str))
    return tuple(word for word in stripped if word and len(word) <= _LONGEST_WORD)[:_MOST_WORDS]


_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "environment")
_COMPARED = re.compile(r"""role['"]?\]?\s*(?:==|!=)\s*['"](\w+)['"]""")


def written_texts(template: Template) -> Iterator[str]:
    """Renders of small conversations: every role, with and without tools, a call, reasoning, thinking on and off.

    A template may build a control string: a header such as `'<|' + role + '|>'` is in no source as a whole. Every added
    token that appears in one of these renders is a control token.
    """
    user: dict[str, Any] = {"role": "user", "content": "x"}
    answer: dict[str, Any] = {"role": "assistant", "content": "y"}
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
    calling: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "r"}
    conversations = [
        [user],
        [user, answer, user],
        [user, calling, result],
        [user, calling, result, answer],
        [user, {**answer, "reasoning_content": "z"}],
    ]
    for role in dict.fromkeys((*_ROLES, *_COMPARED.findall(template.source))):
        said = {**result, "role": role}
        conversations += [[said, user], [user, answer, said]]
    for tools in (None, [SAMPLE_TOOL]):
        for kwargs in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            for messages in conversations if not kwargs else conversations[:3]:
                try:
                    yield template.render(messages, tools=tools, template_kwargs=kwargs)
                except RenderFailed:
                    continue
