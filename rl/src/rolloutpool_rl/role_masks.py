"""Loss masks of finished conversations, made from roles. For offline data only: a role mask is not an RL mask.

Offline data does not say which tokens a policy sampled, so these masks follow the roles of the messages. Each
conversation gets two: `slime_mask` is that of slime 0.3.1 (MultiTurnLossMaskGenerator); `rl_mask` leaves out what
follows the close token, because a template writes it and no policy samples it. In live rollouts masks come from the
token ledger and from nowhere else. Control strings that users and tools typed are encoded as plain text; slime does
not do that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, get_args

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_rl.errors import MessagesRefused
from rolloutpool_rl.role_spans import IdSpans, OffsetSpans, Span

TokenizerType = Literal["qwen", "qwen3", "qwen3_5", "distill_qwen"]
"""How messages are rendered: each alone (qwen); each after a dummy message, with consecutive tool results together
(qwen3); all at once (qwen3_5); or as one prompt with one response (distill_qwen)."""

_DISTILL_MARK = "<\uff5cAssistant\uff5c>"

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class MessageMask:
    """A conversation as ids, with two masks."""

    ids: list[int]
    """[T]."""
    slime_mask: list[int]
    """[T]; 1 from the end of the assistant header to the newline after the close token."""
    rl_mask: list[int]
    """[T]; 1 up to the close token; tool messages are 0 whatever they ask for."""
    ids_equal_full_render: bool
    """Whether a server that renders the whole conversation gets these ids. It may be False for the types that render
    messages one by one; the model is then trained on a text that it will never see."""

    @property
    def response_length(self) -> int:
        """Tokens from the first 1 of `slime_mask` to the end."""
        return get_response_lengths([self.slime_mask])[0]


class MaskGenerator:
    """Makes masks with one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: ChatTokenizer, tokenizer_type: TokenizerType = "qwen") -> None:
        """Chooses how to render.

        Args:
            tokenizer: Of the model to be trained.
            tokenizer_type: `qwen` becomes `distill_qwen` for a vocabulary with DeepSeek's assistant token, as in slime.

        Raises:
            ValueError: There is no such type.
        """
        if tokenizer_type not in get_args(TokenizerType):
            raise ValueError(f"There is no type {tokenizer_type!r}; use one of {', '.join(get_args(TokenizerType))}.")
        if tokenizer_type == "qwen" and tokenizer.token_id(_DISTILL_MARK) is not None:
            tokenizer_type = "distill_qwen"
        self.tokenizer = tokenizer
        self.tokenizer_type: TokenizerType = tokenizer_type

    def get_loss_mask(self, messages: Sequence[Message], tools: Tools = None) -> MessageMask:
        """Makes the masks of a conversation.

        Args:
            messages: In OpenAI's form. Two keys may be added: `step_loss_mask`, where any value but 1 takes the message
                out of both masks, and on a tool message `include_in_loss: true`, which trains it in `slime_mask`.
            tools: What the policy could call.

        Returns:
            The conversation's ids with both masks.

        Raises:
            MessagesRefused: The conversation is empty, the type does not fit the template, or tool results that are
                rendered as one turn disagree about their masks.
            TemplateRefused: The template cannot render it.
        """
        if not messages:
            raise MessagesRefused("There are no messages.")
        # The template must not see our two keys.
        plain = [{k: v for k, v in m.items() if k not in ("step_loss_mask", "include_in_loss")} for m in messages]
        if self.tokenizer_type == "distill_qwen":
            return self._distilled(messages, plain, tools)
        render = self.tokenizer.render_conversation(plain, tools=tools)
        if self.tokenizer_type == "qwen3_5":
            spans = OffsetSpans(self.tokenizer, render).spans([str(m["role"]) for m in plain])
            ids = list(render.ids)
        else:
            # qwen3's template writes consecutive tool results as one turn, so they can only be rendered together.
            alone = IdSpans(self.tokenizer, behind_dummy=self.tokenizer_type == "qwen3")
            groups = list(_groups([str(m["role"]) for m in plain], together=self.tokenizer_type == "qwen3"))
            ids, spans = alone.spans([(plain[group], group) for group in groups], tools)
        slime, rl = _masks(len(ids), spans, messages)
        return MessageMask(ids, slime, rl, ids == list(render.ids))

    def get_response_lengths(self, masks: Sequence[Sequence[int]]) -> list[int]:
        """Calls the function of this name; slime's generator has it as a method."""
        return get_response_lengths(masks)

    def get_text_from_loss_mask(self, ids: Sequence[int], mask: Sequence[int]) -> list[str]:
        """Decodes each run of ones, in order.

        Args:
            ids: [T].
            mask: [T].

        Returns:
            One text per run.

        Raises:
            ValueError: The lengths differ.
        """
        runs = groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
        return [self.tokenizer.decode(token for token, _ in run) for value, run in runs if value == 1]

    def _distilled(self, messages: Sequence[Message], plain: Sequence[Message], tools: Tools) -> MessageMask:
        content = messages[-1].get("content")
        if not isinstance(content, str) or messages[-1].get("role") != "assistant":
            raise MessagesRefused("distill_qwen trains the last message: it must be an assistant's, with text content.")
        # As in slime, only the first message is the prompt; what stands between it and the last is left out.
        prompt = self.tokenizer.render_prompt(plain[:1], tools=tools)
        # Markup in what a policy wrote is meant, so it is not escaped.
        response = self.tokenizer.encode(content)
        mask = [0] * len(prompt) + [int(_trained(messages[-1]))] * len(response)
        # In a full render an end token may follow; this type's response has none, so it is not compared.
        full = self.tokenizer.render_conversation(plain, tools=tools).ids
        ids = prompt + response
        return MessageMask(ids, mask, list(mask), list(full[: len(ids)]) == ids)


def get_response_lengths(masks: Sequence[Sequence[int]]) -> list[int]:
    """Counts the tokens from each mask's first 1 to its end, zeros included.

    This is the length R of a response, to which tool tokens between sampled ones belong. Σmask is another number;
    using it as R puts every `end - R` in the wrong place.

    Args:
        masks: B masks [T].

    Returns:
        [B]; 0 for a mask without a 1.
    """
    return [len(mask) - list(mask).index(1) if 1 in mask else 0 for mask in masks]


def _groups(roles: Sequence[str], *, together: bool) -> Iterator[slice]:
    """Yields which messages are rendered as one: each alone, or consecutive tool results `together`."""
    start = 0
    for is_tool, run in groupby(roles, key=lambda role: role == "tool"):
        length = len(list(run))
        sizes = [length] if is_tool and together else [1] * length
        for size in sizes:
            yield slice(start, start + size)
            start += size


def _trained(message: Message) -> bool:
    return bool(message.get("step_loss_mask", 1) == 1)


def _wants_loss(message: Message) -> bool:
    return message.get("role") == "tool" and bool(message.get("include_in_loss")) and _trained(message)


def _masks(length: int, spans: Sequence[Span], messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    slime, rl = [0] * length, [0] * length
    placed: set[int] = set()
    for span in spans:
        members = messages[span.messages]
        if members[0].get("role") == "assistant" and _trained(members[0]):
            slime[span.start : span.end] = [1] * (span.end - span.start)
            rl[span.start : span.close] = [1] * (span.close - span.start)
        # Only the slime mask takes tool messages: no policy sampled them, so `rl` stays 0 there.
        wanted = set(map(_wants_loss, members))
        if len(wanted) > 1:
            raise MessagesRefused(
                f"Messages {span.messages.start} to {span.messages.stop - 1} are one turn in this template: set "
                "include_in_loss and step_loss_mask alike on all of them."
            )
        if wanted == {True}:
            slime[span.turn_start : span.turn_end] = [1] * (span.turn_end - span.turn_start)
            placed.update(range(span.messages.start, span.messages.stop))
    # `OffsetSpans` gives no span to messages that it cannot tell apart. What asked for loss there must not vanish.
    lost = [i for i, m in enumerate(messages) if _wants_loss(m) and i not in placed]
    if lost:
        raise MessagesRefused(f"include_in_loss: it cannot be told which tokens message {lost[0]} has become.")
    return slime, rl
