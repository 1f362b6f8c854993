"""The trainer's first prompt, compared with our own render of the same messages.

The comparison answers two questions. Does the prompt show the tools? And how many ids more does it have than ours (a
date, or a tool that we do not know)? Renders of later histories must be made in the same way, else their lengths are
wrong.

1. Render the messages with all tools of this worker. If the length is that of the trainer's prompt, tools are shown.
2. Else render them without tools, and take this one. The difference that is left is the `offset`.

A trainer may parse the arguments of calls before it renders them. So there is a count for each of the two forms
(`rerender`). The first messages seldom hold calls; where they do, the form that explains the length answers.

It takes up to two renders, a tenth of the CPU time of a rollout of three turns. Nothing needs them where no history is
edited, and later prompts need not be counted or can be counted from the trainer's own length and the new messages. So
the comparison is made when something that needs it is asked for the first time.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rolloutpool_common.rendering import ChatTokenizer, RenderFailed, RerenderCounter

Tools = list[dict[str, Any]]


class _Look(NamedTuple):
    counter: RerenderCounter | None
    """None where the template refuses the messages."""
    tools: Tools | None
    offset: int


class FirstPrompt:
    """Holds what the policy saw on turn 1. Not thread-safe."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        messages: Sequence[dict[str, Any]],
        echoed: int | None,
        *,
        tools: Tools,
        template_kwargs: Mapping[str, Any] | None,
    ) -> None:
        """The first prompt of a rollout."""
        # A copy, because the conversation goes on appending to its list.
        self.messages = list(messages)
        self._as_text, self._parsed = (
            _Form(tokenizer, self.messages, echoed, tools, template_kwargs, parsed=parsed) for parsed in (False, True)
        )

    @property
    def looked(self) -> bool:
        """Whether the comparison was made, so that the properties below cost nothing more."""
        return self._as_text.looked

    @property
    def tools(self) -> Tools | None:
        """The tools that it shows; None where it shows none."""
        return self._best.tools

    @property
    def offset(self) -> int:
        """How many ids more it has than our render."""
        return self._best.offset

    def count(self, messages: Sequence[dict[str, Any]], *, edited: bool = False, parsed: bool = False) -> int | None:
        """The length of the prompt of a later history, rendered from the start; None where the template refuses it."""
        if edited:
            self._as_text.restart()
            self._parsed.restart()
        return self._form(parsed).count(messages)

    def count_new(self, messages: Sequence[dict[str, Any]], *, parsed: bool = False) -> int | None:
        """The same, from the messages that are new since the last count; None where `count` must render all of them."""
        return self._form(parsed).count_new(messages)

    def counted(self, *, parsed: bool = False) -> int:
        """How many messages the last count had."""
        return self._form(parsed).counted

    def report(self, messages: Sequence[dict[str, Any]], length: int, *, parsed: bool = False) -> None:
        """Notes the length of the prompt that the trainer reported for these messages, counted before or not."""
        self._form(parsed).report(messages, length)

    def _form(self, parsed: bool) -> "_Form":
        return self._parsed if parsed else self._as_text

    @property
    def _best(self) -> _Look:
        look = self._as_text.look
        if look.offset and any(message.get("tool_calls") for message in self.messages):
            parsed = self._parsed.look
            return look if parsed.offset else parsed
        return look


class _Form:
    """Counts prompts in one of the two forms."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        messages: list[dict[str, Any]],
        echoed: int | None,
        tools: Tools,
        kwargs: Mapping[str, Any] | None,
        *,
        parsed: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._messages = messages
        self._echoed = echoed
        self._all_tools = tools
        self._kwargs = kwargs
        self._parsed = parsed
        self._known: _Look | None = None

    @property
    def looked(self) -> bool:
        return self._known is not None

    @property
    def look(self) -> _Look:
        if self._known is None:
            self._known = self._render()
        return self._known

    @property
    def counted(self) -> int:
        counter, _ = self._now
        return 0 if counter is None else counter.counted

    def count(self, messages: Sequence[dict[str, Any]]) -> int | None:
        counter, _, offset = self.look
        if counter is None:
            return None
        try:
            # What our render of the first prompt lacks (a date, say) is missing in that of a later prompt as well.
            return counter.count(messages) + offset
        except RenderFailed:
            return None

    def count_new(self, messages: Sequence[dict[str, Any]]) -> int | None:
        counter, offset = self._now
        length = None if counter is None else counter.count_new(messages)
        return None if length is None else length + offset

    def report(self, messages: Sequence[dict[str, Any]], length: int) -> None:
        counter, offset = self._now
        if counter is not None:
            counter.report(messages, length - offset)

    def restart(self) -> None:
        """Forgets what was counted; what is edited next does not begin with it."""
        for counter in (self._unseen, self._known and self._known.counter):
            if counter is not None:
                counter.restart()

    @property
    def _now(self) -> tuple[RerenderCounter | None, int]:
        """Returns what counts at this moment, and by how much its prompts are shorter than the trainer's."""
        return (self._unseen, 0) if self._known is None else (self._known.counter, self._known.offset)

    @cached_property
    def _unseen(self) -> RerenderCounter | None:
        """A counter that begins with the trainer's own length, so that it needs no render of the first prompt."""
        if self._echoed is None or self._tokenizer.deltas_read_tools(self._all_tools, self._kwargs):
            return None
        counter = self._counter(None)
        counter.begin(len(self._messages), self._echoed)
        return counter

    def _counter(self, tools: Tools | None) -> RerenderCounter:
        return RerenderCounter(self._tokenizer, tools=tools, template_kwargs=self._kwargs, parsed=self._parsed)

    def _render(self) -> _Look:
        look = _Look(None, None, 0)
        for tools in (self._all_tools or None, None):
            counter = self._counter(tools)
            try:
                if self._echoed is None:
                    # There is nothing to compare with, so it is only asked whether the template takes the tools.
                    counter.try_render(self._messages)
                    return _Look(counter, tools, 0)
                ours = counter.count(self._messages, echoed=self._echoed)
            except RenderFailed:
                continue
            look = _Look(counter, tools, (self._echoed or ours) - ours)
            if not look.offset:
                break
        return look
