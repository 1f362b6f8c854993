"""Finds where messages lie among the ids of a rendered conversation.

Trainers do this in two ways, and so does this module:

- `IdSpans` renders each message apart, and cuts off what the template puts around it by lengths that it measured.
- `OffsetSpans` renders once, and cuts at the control tokens that open and close turns. Control ids can be trusted as
  borders, because the renderer never makes one from typed content.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from rolloutpool_common.rendering import ChatTokenizer, RenderedConversation
from rolloutpool_rl.errors import MessagesRefused

_PROBE = {"role": "user", "content": "x"}
_OPEN, _CLOSE = "<|im_start|>", "<|im_end|>"
_HEADER, _THINK = "assistant\n", "<think>\n"


@dataclass(frozen=True, slots=True)
class Span:
    """The place of one message, or of tool results that are rendered as one turn; offsets into the ids."""

    messages: slice
    turn_start: int
    turn_end: int
    start: int
    """After the generation prompt."""
    close: int
    """After the close token."""
    end: int
    """After the newline that follows the close token."""


class IdSpans:
    """Renders messages one by one."""

    def __init__(self, tokenizer: ChatTokenizer, *, behind_dummy: bool) -> None:
        """Measures what the template puts around a message.

        Args:
            tokenizer: Renders the messages.
            behind_dummy: Whether to render each message after a user message.

        Raises:
            MessagesRefused: The template adds a default system prompt to the dummy.
        """
        self._tokenizer = tokenizer
        self._dummy = self._ids([_PROBE], None)
        # One probe is a default system prompt and a message, two are that prompt and two messages. So twice the first
        # length less the second is the length of the system prompt alone.
        self._system = 2 * len(self._dummy) - len(self._ids([_PROBE, _PROBE], None))
        # With a generation prompt less without: what the template writes before the policy speaks.
        self._header = len(tokenizer.render_prompt([_PROBE])) - len(self._dummy)
        self._behind_dummy = behind_dummy
        if behind_dummy and self._system:
            raise MessagesRefused(f"{tokenizer.name} has a default system prompt; use the type `qwen` for it.")

    def spans(
        self, groups: Sequence[tuple[Sequence[Mapping[str, Any]], slice]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[list[int], list[Span]]:
        """Renders the groups one after the other.

        Args:
            groups: Messages that are rendered as one, each with its place in the conversation.
            tools: Shown to the policy in the first render.

        Returns:
            The ids, and a span for each group.

        Raises:
            MessagesRefused: A message is rendered differently next to another, or no close token follows it.
            TemplateRefused: The template cannot render it.
        """
        ids: list[int] = []
        spans = []
        for messages, place in groups:
            own = self._own_ids(messages, tools, first=not ids)
            start, end = len(ids), len(ids) + len(own)
            close = end
            if messages[0]["role"] == "assistant":
                close = start + self._behind_close(own, place)
            spans.append(Span(place, start, end, start + self._header, close, end))
            ids += own
        return ids, spans

    def _own_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, *, first: bool
    ) -> list[int]:
        if self._behind_dummy:
            # The first message of the conversation stays first; all others come after the dummy, which is cut off.
            n = len(self._dummy)
            ids = self._ids([*messages, _PROBE], tools) if first else self._ids([_PROBE, *messages], None)
            own, dummy = (ids[:-n], ids[-n:]) if first else (ids[n:], ids[:n])
            if dummy != self._dummy:
                raise MessagesRefused("The template renders a message differently next to another; use `qwen3_5`.")
            return own
        # The tools are part of the first render only, as in the whole conversation. A default system prompt is part of
        # each render that does not begin with a system message, so it is cut off from the second one on.
        ids = self._ids(messages, tools if first else None)
        return ids if first or messages[0]["role"] == "system" else ids[self._system :]

    def _behind_close(self, ids: Sequence[int], place: slice) -> int:
        for position in range(len(ids) - 1, -1, -1):
            if ids[position] == self._tokenizer.close_id:
                return position + 1
        raise MessagesRefused(f"The template writes no close token after message {place.start}.")

    def _ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        return list(self._tokenizer.render_conversation(messages, tools=tools).ids)


class OffsetSpans:
    """Cuts one render of a ChatML conversation into turns."""

    def __init__(self, tokenizer: ChatTokenizer, render: RenderedConversation) -> None:
        """Finds the turns.

        Args:
            tokenizer: Rendered the conversation.
            render: The whole conversation, with the place of each id in the text.

        Raises:
            MessagesRefused: The vocabulary has no ChatML tokens.
        """
        opening, self._close = tokenizer.token_id(_OPEN), tokenizer.token_id(_CLOSE)
        if opening is None or self._close is None:
            raise MessagesRefused(f"The type `qwen3_5` needs {_OPEN} and {_CLOSE}, which {tokenizer.name} lacks.")
        self._render = render
        # A turn reaches to the next opening token, so the newline after its close token belongs to it.
        starts = [i for i, token in enumerate(render.ids) if token == opening]
        self._turns = list(pairwise([*starts, len(render.ids)]))

    def spans(self, roles: Sequence[str]) -> list[Span]:
        """Finds the spans of all assistant messages, and of the others where they can be told apart.

        Raises:
            MessagesRefused: The render has another number of assistant turns than there are assistant messages.
        """
        answers = [i for i, turn in enumerate(self._turns) if self._is_answer(turn)]
        messages = [i for i, role in enumerate(roles) if role == "assistant"]
        if len(answers) != len(messages):
            raise MessagesRefused(
                f"The template renders {len(answers)} assistant turns for {len(messages)} assistant messages."
            )
        spans = [self._answer(self._turns[t], m) for t, m in zip(answers, messages, strict=True)]
        ends = zip(pairwise([*answers, len(self._turns)]), pairwise([*messages, len(roles)]), strict=True)
        for (turn, next_turn), (message, next_message) in ends:
            spans += self._between(self._turns[turn + 1 : next_turn], roles, message + 1, next_message)
        return spans

    def _is_answer(self, turn: tuple[int, int]) -> bool:
        return self._render.text.startswith(_HEADER, self._render.offsets[turn[0]][1])

    def _answer(self, turn: tuple[int, int], message: int) -> Span:
        text, offsets = self._render.text, self._render.offsets
        close = next((i for i in range(*turn) if self._render.ids[i] == self._close), None)
        if close is None:
            raise MessagesRefused(f"The template writes no {_CLOSE} after message {message}.")
        first = offsets[turn[0]][1] + len(_HEADER)
        first += len(_THINK) if text.startswith(_THINK, first) else 0
        # slime's mask includes the newline after the close token.
        last = offsets[close][1] + text.startswith("\n", offsets[close][1])
        # By characters, because one token may hold the end of the header and the first letters of the answer.
        inside = [i for i in range(*turn) if offsets[i][0] < last and offsets[i][1] > first]
        return Span(slice(message, message + 1), *turn, inside[0], close + 1, inside[-1] + 1)

    @staticmethod
    def _between(turns: Sequence[tuple[int, int]], roles: Sequence[str], start: int, stop: int) -> Iterator[Span]:
        """Yields spans of the messages [start, stop) if each has a turn, or each run of tool results has one."""
        runs = [(role, len(list(run))) for role, run in groupby(roles[start:stop])]
        together = [size for role, n in runs for size in ([n] if role == "tool" else [1] * n)]
        # A template does one or the other. If the number of turns fits neither, it dropped or merged messages, and it
        # cannot be told which.
        for sizes in (together, [1] * (stop - start)):
            if len(sizes) == len(turns):
                for turn, size in zip(turns, sizes, strict=True):
                    yield Span(slice(start, start + size), *turn, *turn, turn[1])
                    start += size
                return
