"""Chat templates as a function from messages to text. Never tokenises, never reads the clock of a rollout.

Messages arrive in OpenAI form and are put into the one form that templates agree on: keys whose value is null are
dropped, null content becomes "", arguments become an object, an empty list of calls or tools is none at all.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutpool_common.rendering.errors import RenderFailed

__all__ = ["Message", "Template", "normalise"]

Message = Mapping[str, Any]

_REASON_LIMIT = 300


class Template:
    """One chat template of a tokenizer. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
        """`source` is the Jinja text; the tokenizer supplies the special tokens and the filters."""
        self.source = source
        self._tokenizer = tokenizer

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """The text of a conversation. Raises RenderFailed with the template's own reason."""
        try:
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
        except Exception as error:  # a template is foreign code: whatever it raises is its refusal
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise RenderFailed(
                f"The chat template refused the roles [{roles}]: {type(error).__name__}: {str(error)[:_REASON_LIMIT]}"
            ) from None


def normalise(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages in the form that templates agree on."""
    return [_message(message) for message in messages]


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
        except ValueError:
            parsed = None
        function["arguments"] = parsed if isinstance(parsed, dict) else arguments
    return {
        "type": "function",
        **{key: value for key, value in call.items() if value is not None},
        "function": function,
    }
