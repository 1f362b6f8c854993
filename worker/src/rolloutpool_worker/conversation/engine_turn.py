"""How the next turn is asked of an engine: with the ids of the ledger.

Every worker that has replayed the journal has the same ids, so there is no mask to plan and no body to repeat. The plan
that is journaled is the digest of the ids: a worker that would ask with other ids notices it (`RequestChanged`).
"""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.errors import RequestChanged
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.engine_tokens import EngineTokens
from rolloutpool_worker.conversation.fork_point import ForkPoint
from rolloutpool_worker.conversation.off_loop import off_loop
from rolloutpool_worker.policy import EngineChannel, MessageBytes, Reply
from rolloutpool_worker.policy.engine_reply import Finish

__all__ = ["EngineAsker"]

PARSING = 4
"""An id counts as so many characters for `off_loop`, because parsing looks at its text several times."""


class EngineAsker:
    """Plans and asks the turns of one rollout."""

    def __init__(self, channel: EngineChannel, tokens: EngineTokens, fork: ForkPoint | None = None) -> None:
        self._channel = channel
        self._tokens = tokens
        self._fork = fork

    async def plan(
        self, messages: Sequence[dict[str, Any]], wire: MessageBytes, turn: int, *, edited: bool = False
    ) -> PlannedTurn:
        """Notes the ids that a turn from 2 on is asked with; arguments as of `TurnAsker.plan`."""
        del messages, wire, turn
        ledger = self._tokens.ledger
        return PlannedTurn(MaskPlan((), ledger.pending_glue, None), ledger.digest.hex(), edited)

    async def ask(
        self, planned: PlannedTurn | None, messages: Sequence[dict[str, Any]], wire: MessageBytes, turn: int
    ) -> tuple[Reply, AskedTurn]:
        """Asks a turn; arguments as of `TurnAsker.ask`.

        Returns:
            What was sampled, with the message that a parser makes of it.

        Raises:
            RequestChanged: The ids are others than were planned; nothing was asked.
            TemplateUnusable: On turn 1, the template refuses the messages.
            RolloutError: What the channel raises for a failed call.
        """
        del wire
        tokens = self._tokens
        await tokens.open(messages)
        if planned is not None and planned.digest != tokens.ledger.digest.hex():
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        if self._fork is not None and turn == self._fork.turn:
            self._fork.check(tokens)
        sampled = await self._channel.sample(turn, tokens.prompt())
        ids, call_ids = sampled.ids, sampled.call_ids
        whole = sampled.finish is Finish.STOP
        parsed = await off_loop(PARSING * len(ids), lambda: tokens.parse(ids, whole=whole, call_ids=call_ids))
        reply = Reply(
            message=parsed.message,
            finish_reason=sampled.finish.value,
            token_ids=ids,
            logprobs=sampled.logprobs,
            prompt_token_ids=None,
            prefix=0,
            policy_version=sampled.version,
            keeps_ids=None,
            fingerprint=None,
            parts=sampled.parts,
            aborts=sampled.aborts,
            attachments=sampled.attachments,
        )
        return reply, AskedTurn(turn, edited=planned is not None and planned.edited)
