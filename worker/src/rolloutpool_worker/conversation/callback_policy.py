"""CallbackPolicy: a trainer that samples behind its `/v1/chat/completions`, and says which ids it has sampled.

A turn is planned once, journaled, and asked with the very same body by any worker:

1. When the messages before a turn are complete, `plan` decides the mask lengths and writes the request's body. The plan
   and the body's digest are journaled as one value (`PlannedTurn`).
2. `ask` sends the body. A worker that has replayed the journal writes the body again and compares its digest first: a
   different body would be another turn to the trainer, so nothing is asked (`RequestChanged`).
3. If the trainer refuses the first mask with 422 and the plan has a second one, that is asked next. After the last one,
   all are counted anew (`TokenTrack.replan`), and those not yet tried are asked.
4. If the trainer says that it has forgotten the rollout's session (409 `unknown_session`), the very same turn is asked
   once more, with the ledger's ids, from which it can prove and restore the session.

The first turn has no plan: its body follows from the rollout's own messages, and it has no mask. The first turn behind
recorded ones is a first turn to its trainer, too (`beginning`), and stays one where it is recorded itself.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from rolloutpool_common.errors import RequestChanged, TrainerStatusError
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.protocol.completions import RESTORE_SESSION, UNKNOWN_SESSION, PastTokens
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.segments import SegmentKind
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.mask_plan import impossible
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy.body import TurnBody
from rolloutpool_worker.policy.callback import CallbackChannel, TurnCall
from rolloutpool_worker.policy.reply import Reply

_log = logging.getLogger(__name__)

CONFLICT = 409
MASK_REFUSED = 422
KEY_REFUSED = frozenset({400, MASK_REFUSED})
"""Statuses by which trainers refuse a key of the body that they do not know."""


_NO_MASK = MaskPlan((0,), 0, None)


class CallbackPolicy:
    """Plans and asks the turns of one rollout."""

    beside = None
    """Nothing is kept beside the result."""

    def __init__(self, channel: CallbackChannel, open_tokens: Callable[[], TokenTrack]) -> None:
        """A policy that is asked by `channel`; `open_tokens` makes the account of a branch's tokens."""
        self.open_tokens = open_tokens
        self.is_news = channel.is_news
        self.ask_idempotent = channel.ask_idempotent
        self._channel = channel
        # By branch: the body of the planned turn, where this attempt has planned it itself. Writing and hashing it
        # twice would take milliseconds where the history is long.
        self._bodies: dict[int, TurnBody] = {}

    @property
    def may_repeat(self) -> bool:
        """See `Policy.may_repeat`."""
        return self._channel.may_repeat

    async def plan(self, branch: Branch, turn: int, *, edited: bool = False) -> PlannedTurn:
        """Decides with which masks a turn is tried; see `Policy.plan`."""
        wire, beginning = branch.history.wire, branch.beginning
        if beginning is not None and turn == beginning.turn:
            body = self._channel.body(wire, 0, beginning.prompt(branch.tokens, branch.history))
            return PlannedTurn(_NO_MASK, body.digest, edited)
        if beginning is not None and beginning.asked_plainly(turn) is not None:
            return PlannedTurn(_NO_MASK, self._channel.body(wire, 0).digest, edited)
        plan = await branch.tokens.plan_mask(branch.history.messages, turn, edited=edited)
        body = self._bodies[branch.number] = self._channel.body(wire, plan.lengths[0])
        return PlannedTurn(plan, body.digest, edited)

    async def ask(self, branch: Branch, turn: int) -> tuple[Reply, AskedTurn]:
        """Asks a turn; see `Policy.ask`."""
        planned, tokens, beginning = branch.planned, branch.tokens, branch.beginning
        if beginning is not None and turn == beginning.turn:
            return await self._ask_first(branch, beginning)
        plain = None if planned is None or beginning is None else beginning.asked_plainly(turn)
        if plain is not None:
            tokens.ledger.accept_echo(plain)
        if planned is None or plain is not None:
            call = TurnCall(turn, self._channel.body(branch.history.wire, 0), branch=branch.number)
            return await self._channel.sample(call), AskedTurn(turn, edited=planned is not None and planned.edited)
        plan, edited = planned.plan, planned.edited
        echo = tokens.offer_prefix(turn, edited=edited)
        call = TurnCall(
            turn,
            self._planned_body(branch, planned, turn),
            edited=edited,
            echo=echo,
            known=tokens.known_echo(),
            branch=branch.number,
        )
        left, replanned = list(plan.lengths), False
        while True:
            length = left.pop(0)
            try:
                reply = await self._sample(call, tokens)
            except TrainerStatusError as error:
                if error.http_status != MASK_REFUSED:
                    raise
                if not left and not replanned:
                    plan, replanned = await tokens.replan(branch.messages, planned), True
                    left += plan.lengths
                if not left:
                    # This trainer counts `rerender`, which no mask can express.
                    if plan.rerender is not None and plan.rerender < 0:
                        raise impossible(plan.rerender, turn) from error
                    raise
                log_event(_log, logging.INFO, "mask refused", length=length, next_length=left[0])
                # Another mask is another body, and a trainer refuses that under the key of the first (409). `mask`
                # makes another key.
                body = self._channel.body(branch.history.wire, left[0])
                call = replace(call, body=body, mask=call.mask + 1)
                continue
            return reply, AskedTurn(turn, plan, length, edited, 0 if echo is None else echo.prefix)

    async def _sample(self, call: TurnCall, tokens: TokenTrack) -> Reply:
        """Asks once; and once more, with the ids so far, if the trainer has forgotten the session."""
        try:
            return await self._channel.sample(call)
        except TrainerStatusError as error:
            if error.http_status != CONFLICT or error.error_type != UNKNOWN_SESSION:
                raise
        past = past_tokens(tokens.ledger)
        log_event(_log, logging.INFO, "trainer forgot the session", turn=call.turn, ids=len(past.token_ids))
        body = call.body.with_key(RESTORE_SESSION, past.model_dump())
        return await self._channel.sample(replace(call, body=body))

    async def _ask_first(self, branch: Branch, beginning: Beginning) -> tuple[Reply, AskedTurn]:
        """Asks the first turn behind recorded ones: with the ids that it is sampled after, or else without."""
        planned, wire, tokens = branch.planned, branch.history.wire, branch.tokens
        turn, prompt, origin = beginning.turn, beginning.prompt(tokens, branch.history), beginning.in_place_of
        body = self._channel.body(wire, 0, prompt)
        if planned is not None and body.digest != planned.digest:
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        beginning.reach(tokens, branch.history, self.open_tokens().kind)
        asked = AskedTurn(turn, edited=planned is not None and planned.edited)
        try:
            return await self._channel.sample(TurnCall(turn, body, in_place_of=origin)), asked
        except TrainerStatusError as error:
            if error.http_status not in KEY_REFUSED or prompt is None:
                raise
            log_event(_log, logging.INFO, "prompt ids refused", status=error.http_status)
        plain = TurnCall(turn, self._channel.body(wire, 0), mask=2, in_place_of=origin)
        return await self._channel.sample(plain), asked

    def _planned_body(self, branch: Branch, planned: PlannedTurn, turn: int) -> TurnBody:
        # Forgotten once it is used: it is as long as the history, and no second call needs it.
        body = self._bodies.pop(branch.number, None)
        if body is None or body.digest != planned.digest:
            body = self._channel.body(branch.history.wire, planned.plan.lengths[0])
        if body.digest != planned.digest:
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        return body


def past_tokens(ledger: TokenLedger) -> PastTokens:
    """Says which ids the current sample has, up to the last sampled one, and which of them each turn sampled.

    All of them are proved by earlier echoes. What follows, the trainer renders itself at every turn.
    """
    turns: dict[int, tuple[int, int]] = {}
    for segment in ledger.segments:
        if segment.kind is SegmentKind.SAMPLED:
            # A turn may be in several parts, with nothing between them.
            start, _ = turns.get(segment.turn, (segment.start, 0))
            turns[segment.turn] = start, segment.end
    return PastTokens(
        token_ids=ledger.ids[: ledger.head], digest=ledger.head_digest.hex(), sampled=list(turns.values())
    )
