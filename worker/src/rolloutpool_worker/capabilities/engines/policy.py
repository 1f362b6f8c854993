"""EnginePolicy: an inference engine that is asked with the ids of the ledger.

Every worker that has replayed the journal has the same ids, so there is no mask to plan and no body to repeat. The plan
that is journaled is the digest of the ids: a worker that would ask with other ids notices it (`RequestChanged`).
"""

from collections.abc import Callable
from typing import Protocol

from rolloutpool_common.errors import RequestChanged
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn
from rolloutpool_worker.capabilities.engines.channel import LedgerPrompt
from rolloutpool_worker.capabilities.engines.reply import EngineTurn, Finish
from rolloutpool_worker.capabilities.engines.tokens import EngineTokens
from rolloutpool_worker.capabilities.engines.turn_attachments import TurnAttachments
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.conversation.off_loop import off_loop
from rolloutpool_worker.policy.reply import Reply

PARSING = 4
"""An id counts as so many characters for `off_loop`, because parsing looks at its text several times."""


class Sampler(Protocol):
    """Samples a turn: an engine (`EngineChannel.sample`), or a record of one (`RecordedEngine`)."""

    async def __call__(self, turn: int, prompt: LedgerPrompt, *, branch: int = 0) -> EngineTurn:
        """Samples one turn after the prompt."""
        ...


class EnginePolicy:
    """Plans and asks the turns of one rollout."""

    may_repeat = True
    """An engine that is asked a turn again samples it again, and nobody else has the first one."""

    def __init__(
        self, sample: Sampler, open_tokens: Callable[[], EngineTokens], attachments: TurnAttachments | None = None
    ) -> None:
        """A policy whose turns `sample` samples; `open_tokens` makes the account of a branch's tokens."""
        self.open_tokens = open_tokens
        self.beside = attachments
        self._sample = sample

    async def ask_idempotent(self) -> bool:
        """See `may_repeat`; nothing is asked."""
        return True

    def is_news(self, batch_id: str) -> bool:
        """Engines promise nothing that would have to be noted."""
        del batch_id
        return False

    async def plan(self, branch: Branch, turn: int, *, edited: bool = False) -> PlannedTurn:
        """Notes the ids that a turn is asked with; see `Policy.plan`."""
        del turn
        ledger = branch.tokens.ledger
        return PlannedTurn(MaskPlan((), ledger.pending_glue, None), ledger.digest.hex(), edited)

    async def ask(self, branch: Branch, turn: int) -> tuple[Reply, AskedTurn]:
        """Asks a turn; see `Policy.ask`. The reply has the message that a parser makes of what was sampled."""
        tokens, planned, beginning = branch.tokens, branch.planned, branch.beginning
        assert isinstance(tokens, EngineTokens)
        await tokens.open(branch.messages)
        if planned is not None and planned.digest != tokens.ledger.digest.hex():
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        if beginning is not None and turn == beginning.turn:
            beginning.check(tokens, branch.history)
        sampled = await self._sample(turn, tokens.prompt(), branch=branch.number)
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
            beside=sampled.attachments,
        )
        return reply, AskedTurn(turn, edited=planned is not None and planned.edited)
