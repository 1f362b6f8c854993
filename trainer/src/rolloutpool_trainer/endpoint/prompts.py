"""Renders the prompt of a turn in the manner of the trainer that the endpoint stands for.

There are two kinds of trainers:

- One that **keeps ids** continues its own: what it sampled is never rendered again, only what was appended is. From
  time to time that is checked against a full render (`prompt_check.py`).
- One that **re-renders** puts the whole history through the chat template each turn, so the ids that it gets may differ
  from those that were sampled.

Both render an edited history from the start, because then there is nothing to continue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.rendering import SAMPLED_TAIL, ChatTokenizer, Delta, rerender
from rolloutpool_common.rendering.full_check import RenderedDelta
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_trainer.endpoint.prompt_check import PromptCheck


@dataclass(frozen=True, slots=True)
class Prompt:
    """Holds what the policy will see."""

    ids: list[int]
    """[P]"""
    delta: Delta | None
    """What was added after the last sampled token; None where the whole prompt was rendered."""


@dataclass(frozen=True, slots=True)
class Prompter:
    """Renders prompts. It may be called in a thread."""

    tokenizer: ChatTokenizer
    keeps_ids: bool
    template_kwargs: dict[str, Any]
    check: PromptCheck

    def prompt(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        ledger: TokenLedger,
        appended: int | None,
    ) -> Prompt:
        """Renders the prompt for a conversation; raises `TemplateRefused` or `PromptFault`.

        `appended` says how many of the messages are new since the last turn's reply. It is None on turn 1 and after an
        edit, when the whole conversation has to be rendered.
        """
        if not self.keeps_ids or appended is None:
            return Prompt(self.whole(messages, tools), None)
        return self.continued(messages, tools, ledger.ids, ledger.last_sampled(SAMPLED_TAIL), appended)

    def whole(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
        """Renders a conversation from its start; arguments and errors as of `prompt`."""
        if not self.keeps_ids:
            # Deliberately naive: no control token is escaped, because trainers that re-render do not do it either.
            return rerender(self.tokenizer, messages, tools=tools, template_kwargs=self.template_kwargs)
        return list(self.tokenizer.render_prompt(messages, tools=tools, template_kwargs=self.template_kwargs))

    def delta(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        sampled: Sequence[int],
        appended: int,
    ) -> Delta:
        """Renders what the last messages add after a sampled turn; arguments and errors as of `continued`."""
        return self.tokenizer.render_delta(
            messages[len(messages) - appended :],
            sampled=sampled,
            history=messages[: len(messages) - appended],
            tools=tools,
            template_kwargs=self.template_kwargs,
        )

    def continued(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        context: Sequence[int],
        sampled: Sequence[int],
        appended: int,
    ) -> Prompt:
        """Renders a prompt that continues sampled ids; raises `TemplateRefused` or `PromptFault`.

        `sampled` are the last ids of the context, of the last turn: `SAMPLED_TAIL` of them are enough. The last
        `appended` messages are new since that turn's reply.
        """
        delta = self.delta(messages, tools, sampled, appended)
        ids = [*context, *delta.close_ids, *delta.glue_ids]
        self.check.check(RenderedDelta(messages, appended, delta, sampled), tools=tools, prompt=len(ids))
        return Prompt(ids, delta)
