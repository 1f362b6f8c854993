"""What a trainer counts that renders the whole history afresh each turn, as `apply_chat_template` does by default.

Messages go into the template as they travel, nothing in them is marked, and whatever the text spells becomes control
ids: this is another party's habit, needed to predict its count, and never a source of a mask. Where added tokens are
hard borders of tokenisation, the count is a sum over the pieces between them, and a piece is tokenised once. The first
text of each conversation proves that: the trainer has counted as many, or it is counted whole as well. Where the two
differ, or there are no such borders, every text is tokenised whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.errors import RenderFailed
from rolloutpool_common.rendering.template import Message, normalise
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

__all__ = ["RerenderCounter", "rerender"]

SHARED_CHARACTERS = 16_384
"""Pieces up to here are looked up in the tokenizer's own memory: a batch's prompts share their instructions."""


def rerender(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Ids [P] of the whole conversation, as a trainer gets them that renders without care; raises RenderFailed."""
    return tokenizer.encode(_text(tokenizer, messages, tools, template_kwargs))


class RerenderCounter:
    """Lengths of one conversation's plain renders. Not thread-safe: one conversation, one counter."""

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
        """Length of the conversation's prompt; raises RenderFailed where the template refuses it.

        `echoed` is what the trainer's own prompt of these messages counts, where that is known.
        """
        text = _text(self._tokenizer, messages, self._tools, self._kwargs)
        if self._whole is None:
            pieces = self._by_pieces(text)
            whole = echoed if pieces == echoed else len(self._tokenizer.encode(text))
            self._whole = pieces != whole
            return whole
        return len(self._tokenizer.encode(text)) if self._whole else self._by_pieces(text)

    def _by_pieces(self, text: str) -> int:
        total = start = 0
        for border in self._tokenizer.added_pattern.finditer(text):
            total += self._piece(text[start : border.start()]) + 1
            start = border.end()
        return total + self._piece(text[start:])

    def _piece(self, piece: str) -> int:
        if not piece:
            return 0
        if len(piece) <= SHARED_CHARACTERS:
            return self._tokenizer.length_of(piece)
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
        # Null content and the like crash some templates; a trainer that serves them must put them right first.
        return tokenizer.render_text(normalise(messages), tools=tools, template_kwargs=template_kwargs)
