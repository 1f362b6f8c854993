"""Proves the tokens from which a forgotten session is restored.

Sessions are in memory. After a restart of the trainer, the pool sends the ids of a rollout so far, and says which of
them were sampled (`PastTokens`). None of that is believed. For these messages

    system, user | assistant | tool | assistant | tool          ids: prompt | sampled | glue | sampled

four things must hold before the turn is sampled; each failure is a 409 that says where it is:

1. The ids have the digest that the pool's ledger has of them, and every id is in the vocabulary.
2. What each turn sampled decodes and parses to the assistant message of the history. Call ids are left out, because
   parsing makes new ones.
3. All other ids are the endpoint's own render, id by id. Where ids are kept, these are the prompt before the first of
   the sampled turns, and what follows each of them. Where the history is rendered again, it is the whole prompt before
   the last one; the policy saw nothing else at that turn.
4. The mask of the request has one zero for each id that this turn's prompt adds (`mask_check`).

One thing can't be proved from messages: ids that parsing makes no difference of, as white space inside a call. For
these the ledger's digest vouches.
"""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rolloutpool_common.errors import TemplateUnusable
from rolloutpool_common.protocol.completions import PastTokens
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.rendering import SAMPLED_TAIL, TemplateRefused
from rolloutpool_common.tokens.arrays import id_digest
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.parsing import SampledParser
from rolloutpool_trainer.endpoint.prompts import Prompt, Prompter
from rolloutpool_trainer.endpoint.request import message_digest

_log = logging.getLogger(__name__)


class SessionUnproved(EndpointError):
    """The tokens that a request has for a forgotten session are not proved by its messages."""

    def __init__(self, why: str, **where: Any) -> None:
        super().__init__(
            409,
            "session_unproved",
            f"this endpoint has no session of this rollout, and can't restore it: {why}. Nothing was sampled; start "
            "the rollout again",
            **where,
        )


class SessionProof:
    """Proves the tokens of forgotten sessions. It may be called in a thread."""

    def __init__(self, prompter: Prompter, parser: SampledParser) -> None:
        self._prompter = prompter
        self._parser = parser

    def prompt(
        self, past: PastTokens, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> Prompt:
        """Proves the tokens so far, as the pool says them, and renders the prompt of the next turn.

        Raises `SessionUnproved`, `TemplateRefused`, or `PromptFault` where what the turn appends is not what a full
        render has.
        """
        self._check_form(past)
        spans = past.sampled
        # A conversation may begin with assistant messages that nobody sampled: examples, or an edited history.
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"][-len(spans) :]
        if len(replies) < len(spans):
            raise SessionUnproved(f"it names {len(spans)} sampled turns, and the history has {len(replies)}")
        for span, reply in zip(spans, replies, strict=True):
            self._prove_sampled(past.token_ids[slice(*span)], messages[reply], span[0], tools)
        try:
            self._prove_rendered(past, replies, messages, tools)
        except (TemplateRefused, TemplateUnusable) as error:
            raise SessionUnproved(f"the chat template cannot render the history: {error.message}") from error
        if not self._prompter.keeps_ids:
            return Prompt(self._prompter.whole(messages, tools), None)
        last = past.token_ids[slice(*spans[-1])][-SAMPLED_TAIL:]
        return self._prompter.continued(messages, tools, past.token_ids, last, len(messages) - replies[-1] - 1)

    def _check_form(self, past: PastTokens) -> None:
        ids, size = past.token_ids, self._prompter.tokenizer.vocab_size
        if not past.sampled:
            raise SessionUnproved("it names no sampled turn")
        end = 0
        for start, following in past.sampled:
            # Before the first sampled id there is a prompt, and something stands between two turns.
            if not end < start < following <= len(ids):
                raise SessionUnproved(f"the sampled ids {start} to {following} are out of order", position=start)
            end = following
        if end != len(ids):
            raise SessionUnproved(f"{len(ids) - end} ids follow the last sampled one", position=end)
        if max(ids) >= size:
            raise SessionUnproved(f"it has id {max(ids)}, and this tokenizer has {size} ids")
        if id_digest(ids) != past.digest:
            raise SessionUnproved("its ids have another digest than it says")

    def _prove_sampled(
        self, ids: list[int], message: dict[str, Any], start: int, tools: list[dict[str, Any]] | None
    ) -> None:
        try:
            parsed = self._parser.message(ids, tools)
        except Exception as error:
            _log.warning("parse failed on the ids of a forgotten session: %s", type(error).__name__)
            raise SessionUnproved(f"what was sampled at id {start} cannot be parsed", position=start) from error
        if _said(parsed.wire()) != _said(message):
            raise SessionUnproved(f"what was sampled at id {start} is not what the history says there", position=start)

    def _prove_rendered(
        self,
        past: PastTokens,
        replies: list[int],
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> None:
        ids, prompter = past.token_ids, self._prompter
        opens = 0 if prompter.keeps_ids else -1
        _prove_equal(ids, 0, past.sampled[opens][0], prompter.whole(messages[: replies[opens]], tools))
        if not prompter.keeps_ids:
            return
        turns = zip(past.sampled, replies, strict=True)
        for ((start, end), reply), ((following, _), next_reply) in pairwise(turns):
            # The very ids that the turn was rendered after, when the session was known.
            sampled = ids[start:end][-SAMPLED_TAIL:]
            delta = prompter.delta(messages[:next_reply], tools, sampled, next_reply - reply - 1)
            _prove_equal(ids, end, following, [*delta.close_ids, *delta.glue_ids])


def _prove_equal(ids: list[int], start: int, end: int, rendered: list[int]) -> None:
    claimed = ids[start:end]
    if claimed == rendered:
        return
    same = next((i for i, (a, b) in enumerate(zip(claimed, rendered, strict=False)) if a != b), None)
    position = start + (min(len(claimed), len(rendered)) if same is None else same)
    raise SessionUnproved(
        f"id {position} is not what this endpoint renders there: {len(claimed)} ids, where it renders {len(rendered)}",
        position=position,
    )


def _said(message: dict[str, Any]) -> bytes:
    """A digest of what a message says, without the ids of its calls."""
    calls = message.get("tool_calls")
    named = message if not calls else {**message, "tool_calls": [{**call, "id": "0"} for call in calls]}
    return message_digest(Message.model_validate(named))
