"""How the next turn is asked: planned once, journaled, and asked with the very same body by any worker.

1. When the messages before a turn are complete, `plan` decides the mask lengths and writes the request's body. The plan
   and the body's digest are journaled as one value (`PlannedTurn`).
2. `ask` sends the body. A worker that has replayed the journal writes the body again and compares its digest first: a
   different body would be another turn to the trainer, so nothing is asked (`RequestChanged`).
3. If the trainer refuses the first mask with 422 and the plan has a second one, that is asked next. After the last one,
   all are counted anew (`TokenTrack.replan`), and those not yet tried are asked.
4. If the trainer says that it has forgotten the rollout's session (409 `unknown_session`), the very same turn is asked
   once more, with the ledger's ids, from which it can prove and restore the session (`past_tokens`).

The first turn has no plan: its body follows from the rollout's own messages, and it has no mask. A fork's first own
turn is a first turn to its trainer, too (`fork_point`).
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rolloutpool_common.errors import RequestChanged, TrainerStatusError
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.protocol.completions import RESTORE_SESSION, UNKNOWN_SESSION
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn, zeros
from rolloutpool_common.protocol.turn_headers import TurnKey
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.fork_point import ForkPoint
from rolloutpool_worker.conversation.mask_plan import impossible
from rolloutpool_worker.conversation.past_tokens import past_tokens
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy import CallbackChannel, MessageBytes, Reply, TurnBody, TurnCall

__all__ = ["TurnAsker"]

_log = logging.getLogger(__name__)

CONFLICT = 409
MASK_REFUSED = 422
KEY_REFUSED = frozenset({400, MASK_REFUSED})
"""Statuses by which trainers refuse a key of the body that they do not know."""


_NO_MASK = MaskPlan((0,), 0, None)


class TurnAsker:
    """Plans and asks the turns of one rollout."""

    def __init__(self, channel: CallbackChannel, tokens: TokenTrack, fork: ForkPoint | None = None) -> None:
        self._channel = channel
        self._tokens = tokens
        self._fork = fork
        # The body of the planned turn, where this attempt has planned it itself: writing and hashing it twice would
        # take milliseconds where the history is long.
        self._body: TurnBody | None = None

    async def plan(
        self, messages: Sequence[dict[str, Any]], wire: MessageBytes, turn: int, *, edited: bool = False
    ) -> PlannedTurn:
        """Decides how a turn from 2 on is asked.

        Args:
            messages: The whole history.
            wire: The same, as it is sent.
            turn: The number of the turn.
            edited: Whether the history was edited since the last turn.
        """
        if self._fork is not None and turn == self._fork.turn:
            body = self._channel.body(wire, None, self._fork.prompt(self._tokens))
            return PlannedTurn(_NO_MASK, body.digest, edited)
        plan = await self._tokens.plan_mask(messages, turn, edited=edited)
        self._body = self._channel.body(wire, plan.first_mask)
        return PlannedTurn(plan, self._body.digest, edited)

    async def ask(
        self, planned: PlannedTurn | None, messages: Sequence[dict[str, Any]], wire: MessageBytes, turn: int
    ) -> tuple[Reply, AskedTurn]:
        """Asks a turn.

        Args:
            planned: As it was journaled; None on turn 1.
            messages: The whole history.
            wire: The same, as it is sent.
            turn: The number of the turn.

        Returns:
            The reply, and how the trainer has accepted the turn.

        Raises:
            RequestChanged: The body is another one than was planned; nothing was asked.
            MaskImpossible: The trainer refuses `exact`, and `rerender` is negative.
            RolloutError: What the channel raises for a failed call.
        """
        if self._fork is not None and turn == self._fork.turn:
            return await self._ask_fork(self._fork, planned, wire)
        if planned is None:
            return await self._channel.sample(TurnCall(turn, self._channel.body(wire, None))), AskedTurn(turn)
        plan, tried, replanned = planned.plan, 0, False
        lengths = list(plan.lengths)
        while True:
            length, tried = lengths[tried], tried + 1
            body = self._planned_body(planned, wire, turn) if tried == 1 else self._channel.body(wire, zeros(length))
            echo = self._tokens.offer_prefix(turn, edited=planned.edited)
            # Another mask is another body, and a trainer refuses that under the key of the first (409). `mask` makes
            # another key.
            known = self._tokens.known_echo()
            call = TurnCall(turn, body, mask=tried, edited=planned.edited, echo=echo, known=known)
            try:
                reply = await self._sample(call)
            except TrainerStatusError as error:
                if error.http_status != MASK_REFUSED:
                    raise
                if tried == len(lengths) and not replanned:
                    plan, replanned = await self._tokens.replan(messages, planned), True
                    lengths += plan.lengths
                if tried == len(lengths):
                    # This trainer counts `rerender`, which no mask can express.
                    if plan.rerender is not None and plan.rerender < 0:
                        raise impossible(plan.rerender, turn) from error
                    raise
                log_event(_log, logging.INFO, "mask refused", length=length, next_length=lengths[tried])
                continue
            return reply, AskedTurn(turn, plan, length, planned.edited, 0 if echo is None else echo.prefix)

    async def _sample(self, call: TurnCall) -> Reply:
        """Asks once; and once more, with the ids so far, if the trainer has forgotten the session."""
        try:
            return await self._channel.sample(call)
        except TrainerStatusError as error:
            if error.http_status != CONFLICT or error.error_type != UNKNOWN_SESSION:
                raise
        past = past_tokens(self._tokens.ledger)
        log_event(_log, logging.INFO, "trainer forgot the session", turn=call.turn, ids=len(past.token_ids))
        body = call.body.with_key(RESTORE_SESSION, past.model_dump())
        return await self._channel.sample(replace(call, body=body))

    async def _ask_fork(
        self, fork: ForkPoint, planned: PlannedTurn | None, wire: MessageBytes
    ) -> tuple[Reply, AskedTurn]:
        """Asks the first turn of a fork: with the ids that the parent's turn was sampled after, or else without."""
        turn, prompt = fork.turn, fork.prompt(self._tokens)
        body = self._channel.body(wire, None, prompt)
        if planned is not None and body.digest != planned.digest:
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        fork.reach(self._tokens)
        asked = AskedTurn(turn, edited=planned is not None and planned.edited)
        origin = TurnKey(fork.origin.uid, turn)
        try:
            return await self._channel.sample(TurnCall(turn, body, forked_from=origin)), asked
        except TrainerStatusError as error:
            if error.http_status not in KEY_REFUSED or prompt is None:
                raise
            log_event(_log, logging.INFO, "prompt ids refused", status=error.http_status)
        plain = TurnCall(turn, self._channel.body(wire, None), mask=2, forked_from=origin)
        return await self._channel.sample(plain), asked

    def _planned_body(self, planned: PlannedTurn, wire: MessageBytes, turn: int) -> TurnBody:
        # Forgotten once it is used: it is as long as the history, and no second call needs it.
        body, self._body = self._body, None
        if body is None or body.digest != planned.digest:
            body = self._channel.body(wire, planned.plan.first_mask)
        if body.digest != planned.digest:
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        return body
