"""Predicts the prompt length of a trainer that renders the whole history again each turn.

Such a trainer calls `apply_chat_template` on all messages. Nothing is escaped there, so typed control strings become
control ids. The pool needs the length to send the mask that this trainer expects; no mask of a result comes from here.

Tokenising the whole history each turn would cost more with every turn. So the text is split at added tokens
(`<|im_start|>` …), and each piece between them is tokenised once and remembered:

1. If the tokenizer says that added tokens are no borders (`added_are_borders`), every text is tokenised whole.
2. Otherwise the first text of a conversation is counted by pieces. The count is proved if the trainer reported the same
   length; if not, the text is tokenised whole as well and compared.
3. If they agree, later texts are counted by pieces; if not, whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.errors import RenderFailed
from rolloutpool_common.rendering.template import Message, normalise
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

__all__ = ["RerenderCounter", "rerender"]

SHARED_CHARACTERS = 16_384
"""Shorter pieces are remembered by the tokenizer for all conversations: a batch's prompts share instructions."""


def rerender(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Renders a whole conversation as a trainer does that escapes nothing.

    Args:
        tokenizer: The trainer's.
        messages: The whole conversation.
        tools: What the policy is shown that it may call.
        template_kwargs: Further variables of the template.

    Returns:
        Ids [P].

    Raises:
        RenderFailed: The template refuses the messages.
    """
    return tokenizer.encode(_text(tokenizer, messages, tools, template_kwargs))


class RerenderCounter:
    """Counts the prompts of one conversation. Not thread-safe: each conversation has a counter of its own."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._tools = tools
        self._kwargs = template_kwargs
        self._lengths: dict[str, int] = {}
        self._whole: bool | None = None if tokenizer.added_are_borders else True

    def count(self, messages: Sequence[Message], *, echoed: int | None = None) -> int:
        """Counts the ids of the prompt.

        Args:
            messages: The whole conversation.
            echoed: The length that the trainer reported for these messages, if it did.

        Raises:
            RenderFailed: The template refuses the messages.
        """
        text = _text(self._tokenizer, messages, self._tools, self._kwargs)
        if self._whole is None:
            pieces = self._by_pieces(text)
            # The same length at the trainer is the proof; the text is then never tokenised whole (docs/decisions/0007).
            whole = echoed if pieces == echoed else len(self._tokenizer.encode(text))
            self._whole = pieces != whole
            return whole
        return len(self._tokenizer.encode(text)) if self._whole else self._by_pieces(text)

    def _by_pieces(self, text: str) -> int:
        total = start = 0
        for border in self._tokenizer.added_pattern.finditer(text):
            # The added token itself is one id.
            total += self._piece(text[start : border.start()]) + 1
            start = border.end()
        return total + self._piece(text[start:])

    def _piece(self, piece: str) -> int:
        if not piece:
            return 0
        if len(piece) <= SHARED_CHARACTERS:
            return self._tokenizer.length_of(piece)
        # A long piece is remembered by this conversation alone, and forgotten with it.
        length = self._lengths.get(piece)
        if length is None:
            length = self._lengths[piece] = len(self._tokenizer.encode(piece))
        return length


def _text(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any] | None,
) -> str:
    try:
        return tokenizer.render_text(messages, tools=tools, template_kwargs=template_kwargs)
    except RenderFailed:
        # Some templates crash on null content. A trainer that serves them must bring messages into normal form first.
        return tokenizer.render_text(normalise(messages), tools=tools, template_kwargs=template_kwargs)
