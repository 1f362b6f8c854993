"""The trainer's first prompt beside our render of it: does it show the tools, and how many ids does it have more?

Looked at when something depends on the answer. Where the trainer keeps ids and no history is edited nothing does, and
the two renders that it takes are a tenth of a rollout of three turns.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rolloutpool_common.rendering import ChatTokenizer, RenderFailed, RerenderCounter

__all__ = ["FirstPrompt"]

Tools = list[dict[str, Any]]


class _Look(NamedTuple):
    counter: RerenderCounter | None
    """None where the template refuses the messages."""
    tools: Tools | None
    offset: int


class FirstPrompt:
    """What the policy saw on turn 1. Not thread-safe."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        messages: Sequence[dict[str, Any]],
        echoed: int | None,
        *,
        tools: Tools,
        template_kwargs: Mapping[str, Any] | None,
    ) -> None:
        """`echoed` is how many ids the trainer's own prompt of these messages has; None where it does not say."""
        self._tokenizer = tokenizer
        # The conversation goes on writing into its list.
        self.messages = list(messages)
        self._echoed = echoed
        self._all_tools = tools
        self._kwargs = template_kwargs
        self._known: _Look | None = None

    @property
    def looked(self) -> bool:
        """Whether the properties below cost nothing any more."""
        return self._known is not None

    @property
    def tools(self) -> Tools | None:
        """Those that it shows; None where it shows none."""
        return self._look.tools

    @property
    def offset(self) -> int:
        """Ids that it has more than ours; a tool or a date that we don't know of."""
        return self._look.offset

    def count(self, messages: Sequence[dict[str, Any]]) -> int | None:
        """How long the prompt of a later history is where it is rendered afresh; None where the template refuses."""
        if self._look.counter is None:
            return None
        try:
            return self._look.counter.count(messages) + self.offset
        except RenderFailed:
            return None

    @property
    def _look(self) -> _Look:
        if self._known is None:
            self._known = self._render()
        return self._known

    def _render(self) -> _Look:
        look = _Look(None, None, 0)
        for tools in (self._all_tools or None, None):
            counter = RerenderCounter(self._tokenizer, tools=tools, template_kwargs=self._kwargs)
            try:
                ours = counter.count(self.messages, echoed=self._echoed)
            except RenderFailed:
                continue
            look = _Look(counter, tools, (self._echoed or ours) - ours)
            if not look.offset:
                break
        return look
