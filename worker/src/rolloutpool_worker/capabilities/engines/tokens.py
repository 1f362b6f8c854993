"""The tokens of a conversation whose policy is asked with ids: the ledger is the prompt, so nothing can drift.

1. Before turn 1 the first prompt is rendered here, with the tools that the rollout may call, and opens the ledger. The
   rollouts of a group share it.
2. A turn is asked with the ledger's ids. What was sampled is appended in parts, one for each version of the weights.
3. Sampled text is parsed for the agent. Whatever a parser makes of it, the ids stay as they were sampled.

The prompt goes out as text (`1,2,3`). The text of what was there at the last turn is kept, so that each turn writes
only its new ids, however long the context is.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.rendering import ChatTokenizer, ParsedTurn, TurnParser
from rolloutpool_common.tokens.entries import SampledEntry
from rolloutpool_worker.capabilities.engines.channel import LedgerPrompt
from rolloutpool_worker.conversation.echo import AskedTurn, VerifiedEcho
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy.reply import Reply, SampledPart

PROMPT_TAIL = 48
"""Ids at the prompt's end that a parser looks at: some templates open a block of thoughts there."""


class EngineTokens(TokenTrack):
    """One rollout's ledger, which is the engine's prompt."""

    def __init__(
        self,
        spec: RolloutSpec,
        tokenizer: ChatTokenizer,
        tools: list[dict[str, Any]],
        parser: TurnParser,
        begins: int = 1,
    ) -> None:
        """Tokens of a rollout that has none yet, whose own turns begin with `begins`."""
        super().__init__(spec, tokenizer, tools, TrainerKind.KEEPS_IDS)
        self._begins = begins
        self._parser = parser
        self._text, self._written = b"", 0
        self._first_version: str | None = None

    async def open(self, messages: Sequence[dict[str, Any]]) -> None:
        """Opens the ledger with the first prompt, unless it is open."""
        if self.ledger.entries:
            return
        self.ledger.seed(await self._render_first(messages))

    def prompt(self) -> LedgerPrompt:
        """Returns the ledger's ids as they are sent."""
        ledger = self.ledger
        # Only the head stays as it is. It is another one after an edit, and where this worker has replayed it.
        if ledger.head != self._written:
            self._text, self._written = b"", 0
        text = _joined(self._text, ledger.ids_from(self._written))
        if self._first_version is None:
            # What another rollout has sampled may be of older weights than those that this one begins with.
            entries = (entry for entry in ledger.entries if isinstance(entry, SampledEntry))
            sampled = (entry for entry in entries if entry.ids and entry.turn >= self._begins)
            self._first_version = next((entry.policy_version for entry in sampled), None)
        # An engine routes an id when it samples the next one, so the last sampled id is the first that has no experts.
        return LedgerPrompt(text, len(ledger), self._first_version, max(ledger.head - 1, 0))

    def parse(self, reply_ids: Sequence[int], *, whole: bool, call_ids: Sequence[str] = ()) -> ParsedTurn:
        """Parses a sampled turn that follows the ledger."""
        after = self.ledger.ids_from(max(0, len(self.ledger) - PROMPT_TAIL))
        return self._parser.parse(reply_ids, after=after, whole=whole, call_ids=call_ids)

    async def ingest_reply(
        self, reply: Reply, messages: Sequence[dict[str, Any]], asked: AskedTurn, *, train: bool
    ) -> VerifiedEcho:
        """Appends what was sampled; see `TokenTrack.ingest_reply`. The channel has compared the prompts."""
        del messages
        self._echoes.check_vocabulary("token_ids", reply.token_ids, asked.turn)
        text = _joined(self.prompt().text, reply.token_ids)
        # A turn without ids has a part as well, so that the ledger knows that the policy had this turn.
        for part in reply.parts or (SampledPart([], [], None),):
            self.ledger.append_sampled(
                part.ids, part.logprobs, turn=asked.turn, policy_version=part.version, train=train
            )
        self._text, self._written = text, self.ledger.head
        return VerifiedEcho(DriftLabel.EDITED if asked.edited else DriftLabel.NONE, None)

    def resume(self, kind: TrainerKind, messages: Sequence[dict[str, Any]]) -> None:
        """Follows a journaled turn: the ledger has all of it."""
        self._resumed = True

    async def _shown_tools(self) -> list[dict[str, Any]] | None:
        return self.tools or None


def _joined(text: bytes, ids: Sequence[int]) -> bytes:
    return b",".join(filter(None, (text, orjson.dumps(ids)[1:-1])))
