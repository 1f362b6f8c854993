"""ChatPolicy: a chat endpoint that answers with a message and without ids (`channel`).

There is no mask to plan, and the ledger stays empty (`NoTokens`). The plan that is journaled is the digest of the
request: a worker that would send another request notices it (`RequestChanged`). Each turn counts as `unverified`.
"""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.errors import RequestChanged
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn, TrainerKind
from rolloutpool_common.protocol.result import StopToken
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.capabilities.osmosis.channel import ChatChannel
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.conversation.echo import AskedTurn, VerifiedEcho
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy.callback import TurnCall
from rolloutpool_worker.policy.reply import Reply


class NoTokens(TokenTrack):
    """The tokens of a rollout whose policy answers without ids; its ledger stays empty."""

    def __init__(self) -> None:
        """Takes no tokenizer, because nothing is rendered. What a `TokenTrack` prepares is not needed."""
        self.ledger = TokenLedger()
        self.kind = self.found_kind = TrainerKind.UNKNOWN
        self.tools = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """Says nothing, because nothing is rendered."""
        return ()

    async def ingest_reply(
        self, reply: Reply, messages: Sequence[dict[str, Any]], asked: AskedTurn, *, train: bool
    ) -> VerifiedEcho:
        """Says that nothing could be compared."""
        return VerifiedEcho(DriftLabel.UNVERIFIED, None)

    def resume(self, kind: TrainerKind, messages: Sequence[dict[str, Any]]) -> None:
        """Does nothing: there is no prompt to know."""

    def stop_of(self, reply: Reply) -> StopToken:
        """A turn without ids shows no end."""
        return StopToken.ABSENT

    async def append(self, messages: list[dict[str, Any]], past: Sequence[dict[str, Any]], turn: int) -> None:
        """Does nothing: the controller renders."""

    async def replace(self, messages: Sequence[dict[str, Any]], turn: int) -> None:
        """Does nothing: the controller renders."""


class ChatPolicy:
    """Plans and asks the turns of one rollout."""

    beside = None
    """Nothing is kept beside the result."""

    def __init__(self, channel: ChatChannel) -> None:
        """A policy that is asked by `channel`."""
        self.open_tokens = NoTokens
        self.is_news = channel.is_news
        self.ask_idempotent = channel.ask_idempotent
        self._channel = channel

    @property
    def may_repeat(self) -> bool:
        """See `Policy.may_repeat`."""
        return self._channel.may_repeat

    async def plan(self, branch: Branch, turn: int, *, edited: bool = False) -> PlannedTurn:
        """Notes the request of a turn; see `Policy.plan`."""
        del turn
        return PlannedTurn(MaskPlan((), 0, None), self._channel.body(branch.history.wire, 0).digest, edited)

    async def ask(self, branch: Branch, turn: int) -> tuple[Reply, AskedTurn]:
        """Asks a turn; see `Policy.ask`. The reply has no ids."""
        planned, body = branch.planned, self._channel.body(branch.history.wire, 0)
        edited = planned is not None and planned.edited
        if planned is not None and body.digest != planned.digest:
            raise RequestChanged(f"turn {turn}: {RequestChanged.__doc__}")
        call = TurnCall(turn, body, edited=edited, branch=branch.number)
        return await self._channel.sample(call), AskedTurn(turn, edited=edited)
