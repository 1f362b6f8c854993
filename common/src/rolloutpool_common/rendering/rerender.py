"""Predicts the prompt length of a trainer that renders the whole history again each turn.

Such a trainer calls `apply_chat_template` on all messages. Nothing is escaped there, so typed control strings become
control ids. The pool needs the length to send the mask that this trainer expects; no mask of a result comes from here.

A call's arguments are text on the wire. Some trainers render that text, and others first parse it, as vLLM does. Where
a template writes the two forms differently, so do their lengths: a counter counts one of them (`parsed`).

Tokenising the whole history each turn would cost more with every turn. So the text is split at added tokens
(`<|im_start|>` …), and each piece between them is tokenised once and remembered:

1. If the tokenizer says that added tokens are no borders (`added_are_borders`), every text is tokenised whole.
2. Otherwise the first text of a conversation is counted by pieces. The count is proved if the trainer reported the same
   length; if not, the text is tokenised whole as well and compared.
3. If they agree, later texts are counted by pieces; if not, whole.

Rendering the whole history costs more with every turn, too. So `count_new` renders only the new messages, wherever that
was found to give the same (`increments`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from rolloutpool_common.rendering.errors import RenderFailed
from rolloutpool_common.rendering.increments import IncrementShape, increment_shape
from rolloutpool_common.rendering.template import Message, normalise, parse_arguments
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

SHARED_CHARACTERS = 48
"""Shorter pieces, such as headers, are remembered by the tokenizer for all conversations."""
SHARED_PROMPT_CHARACTERS = 16_384
"""So are those of first prompts up to this length: a batch's prompts share instructions and tools. What is said later
is remembered by its conversation, because conversations that say different things would push each other's texts out."""
_USER: dict[str, Any] = {"role": "user", "content": "x"}


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


@dataclass(frozen=True, slots=True)
class _Counted:
    messages: int
    rounds: int
    """Turns of the policy among them."""
    ours: int
    """Ids of the prompt, by our own counts alone."""
    reported: int | None = None
    """What the trainer said of it."""
    taken: bool = False
    """Whether `ours` is only what the trainer said. Then it proves nothing about our counts."""


class RerenderCounter:
    """Counts the prompts of one conversation. Not thread-safe: each conversation has a counter of its own."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        parsed: bool = False,
    ) -> None:
        """Counts for a trainer that parses arguments before it renders them (`parsed`), or for one that does not."""
        self._tokenizer = tokenizer
        self._parsed = parsed
        self._tools = tools
        self._kwargs = template_kwargs
        self._lengths: dict[bytes, int] = {}
        self._whole: bool | None = None if tokenizer.added_are_borders else True
        self._trust = tokenizer.increment_trust(tools, template_kwargs)
        self._words = tokenizer.template_words(tools)
        self._opening = None if tokenizer.deltas_read_tools(tools, template_kwargs) else self._trust.opening
        self._last: _Counted | None = None

    def count(self, messages: Sequence[Message], *, echoed: int | None = None) -> int:
        """Counts the ids of the prompt, by rendering all of it."""
        shared = SHARED_PROMPT_CHARACTERS if self._last is None else SHARED_CHARACTERS
        whole = self._count(messages, self._tools, echoed, shared=shared)
        last, shape = self._last, self._shape(messages)
        rounds = _rounds(messages)
        if last is not None and shape is not None and not last.taken:
            added = self._added(messages[last.messages :])
            agreed = added is not None and last.ours + added == whole
            self._trust.checked(shape, rounds, agreed=agreed)
        self._last = _Counted(len(messages), rounds, whole)
        return whole

    def count_new(self, messages: Sequence[Message]) -> int | None:
        """Counts the ids of the prompt from what was counted last, and the messages after that."""
        last, shape = self._last, self._shape(messages)
        if last is None or shape is None:
            return None
        new = messages[last.messages :]
        rounds = last.rounds + _rounds(new)
        if self._trust.needs_check(shape, rounds):
            return None
        added = self._added(new)
        if added is None:
            return None
        self._last = replace(last, messages=len(messages), rounds=rounds, ours=last.ours + added, reported=None)
        return added + (last.ours if last.reported is None else last.reported)

    def begin(self, messages: int, length: int) -> None:
        """Takes the trainer's word for the first prompt, instead of counting it."""
        self._last = _Counted(messages, 0, length)

    def report(self, messages: Sequence[Message], length: int) -> None:
        """Notes the length that the trainer reported, so that errors of increments do not add up."""
        last = self._last
        if last is None:
            return
        if last.messages == len(messages):
            self._last = replace(last, reported=length)
        elif last.messages < len(messages):
            rounds = last.rounds + _rounds(messages[last.messages :])
            self._last = _Counted(len(messages), rounds, length, length, taken=True)

    def restart(self) -> None:
        """Forgets what was counted: the next messages do not begin with those."""
        self._last = None

    @property
    def counted(self) -> int:
        """How many messages were counted last."""
        return 0 if self._last is None else self._last.messages

    def _shape(self, messages: Sequence[Message]) -> IncrementShape | None:
        if self._trust.broken or self._last is None:
            return None
        shape = increment_shape(messages[self._last.messages :], self._words)
        # Each form is checked by itself.
        return shape if shape is None or not self._parsed else ("parsed", *shape)

    def _added(self, new: Sequence[Message]) -> int | None:
        """How many ids the new messages add; None where the template refuses them without their history."""
        tools = self._tools if self._tokenizer.deltas_read_tools(self._tools, self._kwargs) else None
        try:
            if self._opening is None:
                self._opening = self._count([_USER], tools)
                if tools is None:
                    self._trust.opening = self._opening
            return self._count([_USER, *new], tools) - self._opening
        except RenderFailed:
            return None

    def _count(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        echoed: int | None = None,
        *,
        shared: int = SHARED_CHARACTERS,
    ) -> int:
        given = parse_arguments(messages) if self._parsed else messages
        text = _text(self._tokenizer, given, tools, self._kwargs)
        if self._whole is None:
            pieces = self._by_pieces(text, shared)
            # The same length at the trainer is the proof; the text is then never tokenised whole (docs/decisions/0007).
            whole = echoed if pieces == echoed else len(self._tokenizer.encode(text))
            self._whole = pieces != whole
            return whole
        return len(self._tokenizer.encode(text)) if self._whole else self._by_pieces(text, shared)

    def _by_pieces(self, text: str, shared: int) -> int:
        total = start = 0
        for border in self._tokenizer.added_pattern.finditer(text):
            # The added token itself is one id.
            total += self._piece(text[start : border.start()], shared) + 1
            start = border.end()
        return total + self._piece(text[start:], shared)

    def _piece(self, piece: str, shared: int) -> int:
        if not piece:
            return 0
        if len(piece) <= SHARED_CHARACTERS:
            return self._tokenizer.length_of(piece)
        # Its digest stands for it, because the texts of a whole conversation would be kept twice.
        key = blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        length = self._lengths.get(key)
        if length is None:
            remembered = len(piece) <= shared
            length = self._tokenizer.length_of(piece) if remembered else len(self._tokenizer.encode(piece))
            self._lengths[key] = length
        return length


def _rounds(messages: Sequence[Message]) -> int:
    return sum(message.get("role") == "assistant" for message in messages)


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
