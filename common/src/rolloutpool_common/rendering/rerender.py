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

Rendering the whole history costs more with every turn, too. So `count_new` looks at the new messages alone, wherever
that was found to give the same (`increments`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from rolloutpool_common.rendering.errors import RenderFailed
from rolloutpool_common.rendering.increments import QUESTION, Increment
from rolloutpool_common.rendering.template import Message, Tools, normalise, parse_arguments
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

SHARED_CHARACTERS = 48
"""Shorter pieces, such as headers, are remembered by the tokenizer for all conversations."""
SHARED_PROMPT_CHARACTERS = 16_384
"""So are those of first prompts up to this length: a batch's prompts share instructions and tools. What is said later
is remembered by its conversation, because conversations that say different things would push each other's texts out."""
_USER: dict[str, Any] = {"role": "user", "content": QUESTION}


def rerender(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Renders a whole conversation as a trainer does that escapes nothing."""
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
        tools: Tools | None,
        template_kwargs: Mapping[str, Any] | None,
        parsed: bool = False,
    ) -> None:
        """Counts for a trainer that parses arguments before it renders them (`parsed`), or for one that does not."""
        self._tokenizer = tokenizer
        self._parsed = parsed
        self._tools = tools
        self._kwargs = template_kwargs
        self._lengths: dict[bytes, int] = {}
        self._whole: bool | None = None if tokenizer.codec.vocabulary.added_are_borders else True
        self._trust = tokenizer.increment_trust(tools, template_kwargs)
        self._reads_tools = tokenizer.deltas_read_tools(tools, template_kwargs)
        self._asked: int | None = None
        """Ids of the question and what is proved to stand behind it."""
        self._opening: int | None = None
        """Ids of the question's render, where that depends on the tools of this conversation."""
        self._last: _Counted | None = None

    def try_render(self, messages: Sequence[Message]) -> None:
        """Renders the prompt without counting it; raises `RenderFailed` where the template refuses it."""
        _text(self._tokenizer, self._given(messages), self._tools, self._kwargs)

    def count(self, messages: Sequence[Message], *, echoed: int | None = None) -> int:
        """Counts the ids of the prompt, by rendering all of it."""
        shared = SHARED_PROMPT_CHARACTERS if self._last is None else SHARED_CHARACTERS
        whole = self._count(messages, self._tools, echoed, shared=shared)
        last, rounds = self._last, _rounds(messages)
        if last is not None and not last.taken and not self._trust.broken:
            new = self._given(messages[last.messages :])
            increment = self._trust.find(new)
            if increment is not None:
                added = self._added(new, increment)
                agreed = added is not None and last.ours + added == whole
                self._trust.checked(increment.shape, rounds, agreed=agreed)
        self._last = _Counted(len(messages), rounds, whole)
        return whole

    def count_new(self, messages: Sequence[Message]) -> int | None:
        """Counts the ids of the prompt from what was counted last, and the messages after that.

        None where `count` must render all of it.
        """
        last = self._last
        if last is None or self._trust.broken:
            return None
        new = self._given(messages[last.messages :])
        increment = self._trust.find(new)
        rounds = last.rounds + _rounds(new)
        if increment is None or self._trust.needs_check(increment.shape, rounds):
            return None
        added = self._added(new, increment)
        if added is None:
            return None
        self._last = _Counted(len(messages), rounds, last.ours + added, taken=last.taken)
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

    def _given(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Messages as this trainer's template gets them."""
        return parse_arguments(messages) if self._parsed else messages

    def _added(self, new: Sequence[Message], increment: Increment) -> int | None:
        """How many ids the new messages add; None where the template refuses them without their history."""
        if increment.text is not None and (behind := self._trust.behind_question) is not None:
            if self._asked is None:
                self._asked = self._length(QUESTION + behind)
            return self._length(QUESTION + increment.text) - self._asked
        tools = self._tools if self._reads_tools else None
        opening = self._opening if self._reads_tools else self._trust.opening
        try:
            if opening is None:
                opening = self._opening = self._count([_USER], tools)
                if not self._reads_tools:
                    self._trust.opening = opening
            return self._count([_USER, *new], tools) - opening
        except RenderFailed:
            return None

    def _count(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        echoed: int | None = None,
        *,
        shared: int = SHARED_CHARACTERS,
    ) -> int:
        text = _text(self._tokenizer, self._given(messages), tools, self._kwargs)
        return self._length(text, echoed, shared)

    def _length(self, text: str, echoed: int | None = None, shared: int = SHARED_CHARACTERS) -> int:
        if self._whole is None:
            pieces = self._by_pieces(text, shared)
            # The same length at the trainer is the proof; the text is then never tokenised whole (docs/decisions/0002).
            whole = echoed if pieces == echoed else len(self._tokenizer.encode(text))
            self._whole = pieces != whole
            return whole
        return len(self._tokenizer.encode(text)) if self._whole else self._by_pieces(text, shared)

    def _by_pieces(self, text: str, shared: int) -> int:
        pieces = self._tokenizer.added_pattern.split(text)
        # Each added token between two pieces is one id.
        total = len(pieces) - 1
        for piece in pieces:
            if piece:
                short = len(piece) <= SHARED_CHARACTERS
                total += self._tokenizer.length_of(piece) if short else self._long_piece(piece, shared)
        return total

    def _long_piece(self, piece: str, shared: int) -> int:
        # Its digest stands for it, because the texts of a whole conversation would be kept twice.
        key = blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        length = self._lengths.get(key)
        if length is None:
            remembered = len(piece) <= shared
            length = self._tokenizer.length_of(piece) if remembered else len(self._tokenizer.encode(piece))
            self._lengths[key] = length
        return length


def _rounds(messages: Sequence[Message]) -> int:
    return [message.get("role") for message in messages].count("assistant")


def _text(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    tools: Tools | None,
    template_kwargs: Mapping[str, Any] | None,
) -> str:
    try:
        return tokenizer.render_text(messages, tools=tools, template_kwargs=template_kwargs)
    except RenderFailed:
        # Some templates crash on null content. A trainer that serves them must bring messages into normal form first.
        return tokenizer.render_text(normalise(messages), tools=tools, template_kwargs=template_kwargs)
