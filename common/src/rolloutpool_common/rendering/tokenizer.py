"""A tokenizer with its chat template: the only way from messages to ids. Immutable, so threads may share it.

There are three renders:

- `render_prompt`: a whole conversation as ids, with the header after which the policy speaks.
- `render_delta`: only the messages that are new since the policy spoke last (`delta.py`).
- `render_conversation`: a finished conversation with the place of each id in the text, for masks by role.

What people, tools and files say never becomes a control token (`control_tokens.py`). A render raises TemplateRefused
rather than guess. All calls are synchronous and need CPU time: from an event loop, hand long content to a thread.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

from cachetools import LRUCache
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import NONCE, split_marks
from rolloutpool_common.rendering.delta import Delta, Placement
from rolloutpool_common.rendering.doubts import Doubts
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.increments import IncrementTrust
from rolloutpool_common.rendering.proof.claims import Proof
from rolloutpool_common.rendering.render_budget import SECONDS, RenderBudget
from rolloutpool_common.rendering.sentinel import Continuation
from rolloutpool_common.rendering.short_cuts import DeltaRenderer, arguments_key
from rolloutpool_common.rendering.template import Message, Template, Tools, join_parts, normalise, written_texts
from rolloutpool_common.rendering.turn_end import TurnEnd, find_answer_end
from rolloutpool_common.tokens.entries import TokenizerFingerprint

LENGTHS = 512
"""Texts whose length in ids is remembered."""
TRUSTS = 64
"""Template arguments of which it is remembered how increments were found right."""

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
"""Tokens by which a policy may end a turn, whatever its template writes there."""


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """A finished conversation as text and ids. All its control ids were written by the template or an assistant."""

    text: str
    ids: tuple[int, ...]
    """[T]."""
    offsets: tuple[tuple[int, int], ...]
    """[T]; where each id lies in `text`, as [start, end) in characters."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """Holds what `load_tokenizer` has read and compared."""

    name: str
    """As it was loaded: the rollouts' `tokenizer_name`."""
    revision: str | None
    fingerprint: TokenizerFingerprint
    backend: Tokenizer
    """Encodes."""
    chat: PreTrainedTokenizerBase
    """Renders, and never encodes."""
    stop_ids: tuple[int, ...]
    """Those at which the model itself stops."""


class ChatTokenizer:
    """Renders and encodes for one model family; `load_tokenizer` makes it."""

    def __init__(self, loaded: LoadedTokenizer, render_seconds: float = SECONDS, doubts: Doubts | None = None) -> None:
        """Use `load_tokenizer`."""
        chat = loaded.chat
        self.doubts = doubts or Doubts()
        """Which shapes of deltas go by the rule."""
        self.name = loaded.name
        """As it was loaded: the rollouts' `tokenizer_name`."""
        self.revision = loaded.revision
        self.fingerprint = loaded.fingerprint
        self.reference = chat
        """The tokenizer of transformers, as a trainer uses it that knows nothing of the pool; for checks."""
        budget = RenderBudget(loaded.name, render_seconds)
        sources = list(t.values()) if isinstance(t := chat.chat_template, dict) else [t]
        self._templates = {source: Template(chat, source, budget) for source in sources}
        self._only: str | None = sources[0] if len(sources) == 1 else None
        written = "\n".join(text for t in self._templates.values() for text in (t.source, *written_texts(t)))
        self._written, self.codec = written, Codec(loaded.backend, written)
        """`codec` is for the other modules of this folder."""
        control = self.codec.control_ids
        own_stops = (self.codec.control_strings.get(token_id) for token_id in loaded.stop_ids)
        stops = frozenset(text for text in (*_STOPS, chat.eos_token, *own_stops) if text in control)
        ends = {source: find_answer_end(t, self.codec.pattern, stops) for source, t in self._templates.items()}
        self.close_token = ends[self._template(None).source].close
        """The control string that ends an assistant message; None where the template writes none."""
        self.close_id = control.get(self.close_token) if self.close_token else None
        """The id that ends an assistant message; None where the template writes none."""
        stops |= {self.close_token} if self.close_token else frozenset()
        self.stop_ids = frozenset(control[text] for text in stops)
        """Ids that end a turn when the policy samples them."""
        self.closes_turns = ends[self._template(None).source].text.rstrip().endswith(tuple(stops))
        """Whether the template ends an answer with a token at which policies stop, even where nothing follows it."""
        self._lock = Lock()
        self._trusts: LRUCache[tuple[str, str, bool], IncrementTrust] = LRUCache(TRUSTS)
        self.length_of = lru_cache(LENGTHS)(lambda text: len(self.encode(text)))
        """Counts the ids of a text; the lengths of the last 512 texts are remembered."""
        self._deltas = {
            source: DeltaRenderer(
                t, self.codec, TurnEnd(self.codec.pattern, stops, ends[source]), loaded.fingerprint, self.doubts
            )
            for source, t in self._templates.items()
        }

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that can be decoded."""
        return self.codec.vocabulary.size

    @property
    def prompt_vocab_size(self) -> int:
        """One more than the largest id of a prompt.

        A model may lack the special tokens behind it: Gemma 3's text models have no id of an image.
        """
        size, strings = self.vocab_size, self.codec.control_strings
        while (text := strings.get(size - 1)) is not None and text not in self._written:
            size -= 1
        return size

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that only the template and the policy may produce."""
        return frozenset(self.codec.control_ids.values())

    @cached_property
    def added_pattern(self) -> re.Pattern[str]:
        """Finds the strings that are one id wherever they stand; where several begin at a place, the longest."""
        strings = sorted(self.codec.vocabulary.added, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, strings)) or r"(?!)")

    @property
    def closing(self) -> tuple[int, ...]:
        """The ids by which a turn ends that was sampled whole; empty where the template writes none."""
        return () if self.close_id is None else (self.close_id,)

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
        """Encodes a text without adding special tokens.

        Args:
            text: Any text.
            control: Whether control strings become control ids; otherwise they are spelled.

        Returns:
            Ids [T].
        """
        return self.codec.encode(text, control=control)

    def template_words(self, tools: Tools | None) -> tuple[str, ...]:
        """Literals that the template looks for in texts, such as `/no_think`."""
        return self._template(tools).words

    def increment_trust(self, tools: Tools | None, template_kwargs: Mapping[str, Any] | None) -> IncrementTrust:
        """What is known of the increments of this template under these arguments; all conversations share it."""
        template, renderer, kwargs = self._template(tools), self._renderer(tools), template_kwargs or {}
        # Where tools change nothing, what conversations with tools have shown is true for those without.
        reads_tools = self.deltas_read_tools(tools, kwargs)
        key = template.source, arguments_key(kwargs), reads_tools
        with self._lock:
            trust = self._trusts.get(key)
            if trust is None:
                trust = self._trusts[key] = IncrementTrust(
                    self.name,
                    lambda shape: renderer.proof(shape, kwargs),
                    self.codec.pattern,
                    template.words,
                    tools=reads_tools,
                )
        return trust

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids, special tokens included, nothing cleaned up; invalid UTF-8 becomes U+FFFD."""
        return self.codec.decode(ids)

    def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Renders a whole conversation with its generation prompt.

        Args:
            messages: From the first one on.
            tools: What the policy is shown that it may call.
            template_kwargs: Further variables of the template.

        Returns:
            Ids [P].

        Raises:
            TemplateRefused: The template cannot render them, or control strings cannot be kept apart.
        """
        return self.codec.encode_rendered(self._render(messages, tools, template_kwargs, generation_prompt=True))

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders what the messages say, with typed control strings unmarked: to read, or to predict other renders.

        Args:
            messages: From the first one on.
            tools: What the policy is shown that it may call.
            template_kwargs: Further variables of the template.

        Returns:
            The text, with its generation prompt.

        Raises:
            RenderFailed: The template raised an error.
        """
        return self._template(tools).render(join_parts(messages), tools=tools, template_kwargs=template_kwargs)

    def render_conversation(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedConversation:
        """Renders a finished conversation, without a generation prompt.

        Raises:
            TemplateRefused: See `render_prompt`.
        """
        marked = self._render(messages, tools, template_kwargs, generation_prompt=False)
        text = "".join(piece for piece, _ in split_marks(marked))
        return RenderedConversation(text, tuple(self.codec.encode_rendered(marked)), tuple(self.codec.offsets(marked)))

    def token_id(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary spells it (`\u0120hello`, `<|im_end|>`); None if there is none."""
        return self.codec.token_id(piece)

    def deltas_read_tools(self, tools: Tools | None, template_kwargs: Mapping[str, Any] | None) -> bool:
        """Whether deltas depend on the tools that the policy was shown, so that it matters which these are."""
        if not tools:
            return False
        # With several templates, it is the tools that decide which one renders.
        if len(self._deltas) > 1:
            return True
        return self._renderer(tools).reads_tools(template_kwargs or {})

    def delta_placement(
        self,
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message],
        tools: Tools | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> tuple[Placement, Message]:
        """What a delta leaves out, and the turn as it is rendered. Arguments and errors as of `render_delta`."""
        found = self._renderer(tools).rule.find(Continuation(new_messages, history, tools, template_kwargs or {}))
        return found.form.placement, found.real.turn

    def delta_proof(
        self,
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message],
        tools: Tools | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Proof:
        """What is proved of deltas of this shape, and why not more. Arguments and errors as of `render_delta`."""
        return self._renderer(tools).proof_of(Continuation(new_messages, history, tools, template_kwargs or {}))

    @property
    def deltas_read_history(self) -> bool:
        """Whether any delta so far depended on all of its history. Its cost then grows with the history."""
        return any(renderer.reads_history for renderer in self._deltas.values())

    def render_delta(
        self,
        new_messages: Sequence[Message],
        *,
        sampled: Sequence[int],
        history: Sequence[Message] | None = None,
        tools: Tools | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Delta:
        """Renders what the new messages add after a sampled turn, with the next generation prompt.

        Args:
            new_messages: What follows the turn; no assistant messages.
            sampled: The ids of the turn, or the last `SAMPLED_TAIL` of them; empty where the policy sampled nothing.
            history: All messages up to the policy's turn, that turn included; None where they are not known. Most
                templates need none of it.
            tools: What the policy was shown that it may call.
            template_kwargs: Further variables of the template.

        Raises:
            TemplateRefused: The template does not append these messages, or what it writes depends on a history that
                is not given; their ids cannot be exact.
        """
        renderer = self._renderer(tools)
        return renderer.render(new_messages, sampled, history=history, tools=tools, template_kwargs=template_kwargs)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        template_kwargs: Mapping[str, Any] | None,
        *,
        generation_prompt: bool,
    ) -> str:
        """Renders a conversation with typed control strings marked."""
        template, escaper, shown = self._template(tools), self.codec.escaper, list(tools or ())
        normal = normalise(messages)

        def mark(edges: bool) -> list[list[dict[str, Any]]]:
            return [escaper.messages(normal, edges=edges), escaper.value(shown, edges=edges)]

        def write(given: list[list[dict[str, Any]]]) -> str:
            said, marked_tools = given
            return template.render(
                said, tools=marked_tools, template_kwargs=template_kwargs, generation_prompt=generation_prompt
            )

        return escaper.render(mark, write, [[message["content"] for message in normal], shown])

    def _template(self, tools: Tools | None) -> Template:
        return self._templates[self._source(tools)]

    def _renderer(self, tools: Tools | None) -> DeltaRenderer:
        return self._deltas[self._source(tools)]

    def _source(self, tools: Tools | None) -> str:
        """The source of the template that renders where these tools are shown."""
        if self._only is not None:
            return self._only  # each delta asks
        shown = [dict(tool) for tool in tools or ()] or None
        return str(self.reference.get_chat_template(tools=shown))
