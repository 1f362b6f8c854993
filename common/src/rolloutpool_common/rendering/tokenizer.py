"""A tokenizer with its chat template: the only way from messages to ids. Immutable, so threads may share it.

What people, tools and files say never becomes a control token (see `untrusted`). Rendering raises TemplateRefused
rather than guess. All calls are synchronous and CPU bound: from an event loop, hand long content to a thread.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from rolloutpool_common.rendering import deepseek
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import NONCE, split_marks
from rolloutpool_common.rendering.delta import Delta, DeltaRenderer, find_close
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.template import Message, Template, normalise
from rolloutpool_common.tokens.entries import TokenizerFingerprint

__all__ = ["ChatTokenizer", "RenderedConversation"]

LENGTHS = 512

# Ids that a policy may end a turn with, whatever its template writes there.
_STOPS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<\uff5cend▁of▁sentence\uff5c>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "</s>",
)


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """A rendered conversation. Control ids in it were all written by the template or said by an assistant."""

    text: str
    ids: tuple[int, ...]
    """[T]."""
    offsets: tuple[tuple[int, int], ...]
    """[T]; where each id lies in `text`, as [start, end) in characters."""


class ChatTokenizer:
    """Renders and encodes for one model family."""

    def __init__(
        self,
        name: str,
        revision: str | None,
        fingerprint: TokenizerFingerprint,
        backend: Tokenizer,
        chat: PreTrainedTokenizerBase,
    ) -> None:
        """Use `load_tokenizer`. `chat` renders and never encodes; `backend` encodes."""
        self.name = name
        self.revision = revision
        self.fingerprint = fingerprint
        self._chat = chat
        templates = chat.chat_template
        sources = list(templates.values()) if isinstance(templates, dict) else [templates]
        self._codec = Codec(backend, "\n".join(sources))
        self.close_token = find_close(self._template(None), self._codec)
        """The control string that ends an assistant message; None where the template writes none."""
        control = self._codec.control_ids
        self.close_id = control.get(self.close_token) if self.close_token else None
        """Its id."""
        self.stop_ids = frozenset(control[s] for s in (*_STOPS, self.close_token, chat.eos_token) if s in control)
        """Ids that end a turn when the policy samples them."""
        self._length_of = lru_cache(LENGTHS)(lambda text: len(self.encode(text)))
        self._deltas = {
            source: DeltaRenderer(Template(chat, source), self._codec, self.close_token, self.stop_ids)
            for source in sources
        }

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that can be decoded."""
        return self._codec.vocab_size

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that only the template and the policy may produce."""
        return frozenset(self._codec.control_ids.values())

    @property
    def added_strings(self) -> frozenset[str]:
        """All strings that are one id wherever they stand."""
        return self._codec.added_strings

    @cached_property
    def added_pattern(self) -> re.Pattern[str]:
        """Finds them, the longest first."""
        strings = sorted(self.added_strings, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, strings)) or r"(?!)")

    @property
    def added_are_borders(self) -> bool:
        """Whether the ids of a text are those of its pieces between added strings."""
        return self._codec.added_are_borders

    @property
    def tools_choose_template(self) -> bool:
        """Whether there are several templates, one of them for conversations with tools."""
        return len(self._deltas) > 1

    @property
    def reads_clock(self) -> bool:
        """Whether the template prints the date of the render, unless told which."""
        return any("strftime_now" in source for source in self._deltas)

    @cached_property
    def renders_tools(self) -> bool:
        """Whether the template shows the policy which tools there are; many drop them silently."""
        tool = {"type": "function", "function": {"name": NONCE, "description": "x", "parameters": {"type": "object"}}}
        try:
            return NONCE in self._template([tool]).render([{"role": "user", "content": "x"}], tools=[tool])
        except TemplateRefused:
            return False

    def encode(self, text: str, *, control: bool = True) -> list[int]:
        """Ids of the text, no special tokens added; with `control=False` none of them is a control id."""
        return self._codec.encode(text, control=control)

    def length_of(self, text: str) -> int:
        """How many ids the text has; remembered for the last texts that were asked for."""
        return self._length_of(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, special tokens included, nothing cleaned up; invalid UTF-8 becomes U+FFFD."""
        return self._codec.decode(ids)

    def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids [P] of a whole conversation with its generation prompt. Raises TemplateRefused."""
        return self._codec.encode_rendered(self._render(messages, tools, template_kwargs, generation_prompt=True))

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """What the template makes of the messages as they are, nothing marked: for reading, not for ids to train on.

        Raises RenderFailed.
        """
        return self._template(tools).render(messages, tools=tools, template_kwargs=template_kwargs)

    def render_conversation(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedConversation:
        """A finished conversation as the template writes it, without a generation prompt. Raises TemplateRefused."""
        marked = self._render(messages, tools, template_kwargs, generation_prompt=False)
        text = "".join(piece for piece, _ in split_marks(marked))
        return RenderedConversation(
            text, tuple(self._codec.encode_rendered(marked)), tuple(self._codec.offsets(marked))
        )

    def token_id(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary spells it (`\u0120hello`, `<|im_end|>`); None if there is none."""
        return self._codec.token_id(piece)

    def render_delta(
        self,
        new_messages: Sequence[Message],
        *,
        last_sampled_id: int | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Delta:
        """What the new messages add behind a sampled turn, generation prompt included.

        `last_sampled_id` is None where the policy sampled nothing. `tools` only choose among named templates: they
        stand in front of history and are not rendered again. Raises TemplateRefused.
        """
        renderer = self._deltas[self._template(tools).source]
        results = 0
        if deepseek.applies(self._codec) and self.close_token:
            normal = normalise(new_messages)
            results = next((i for i, m in enumerate(normal) if m.get("role") != "tool"), len(normal))
        if not results:
            return renderer.render(new_messages, last_sampled_id, template_kwargs)
        block = deepseek.outputs_block(normal[:results], self._codec, after=self.close_token or "")
        rest = (
            renderer.render(new_messages[results:], self.close_id, template_kwargs).glue_ids if normal[results:] else ()
        )
        closed = last_sampled_id in self.stop_ids or self.close_id is None
        return Delta(() if closed or self.close_id is None else (self.close_id,), (*block, *rest))

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        *,
        generation_prompt: bool,
    ) -> str:
        """The text of a conversation, untrusted control strings marked."""
        template, guard, normal = self._template(tools), self._codec.guard, normalise(messages)

        def text(edges: bool) -> str:
            return template.render(
                guard.messages(normal, edges=edges),
                tools=guard.value(list(tools or ()), edges=edges),
                template_kwargs=template_kwargs,
                generation_prompt=generation_prompt,
            )

        rendered = text(edges=False)
        if guard.has_edges([m["content"] for m in normal]) or guard.has_edges(list(tools or ())):
            marked = text(edges=True)
            if self._codec.count_control(split_marks(marked)) != self._codec.count_control(split_marks(rendered)):
                return marked
        return rendered

    def _template(self, tools: Sequence[Mapping[str, Any]] | None) -> Template:
        return Template(self._chat, self._chat.get_chat_template(tools=[dict(tool) for tool in tools or ()] or None))
