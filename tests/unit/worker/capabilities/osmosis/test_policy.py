"""Rollouts without ids have no tokens."""

from typing import Any

from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.protocol.result import StopToken
from rolloutpool_worker.capabilities.osmosis.policy import NoTokens
from rolloutpool_worker.conversation.echo import AskedTurn, VerifiedEcho
from rolloutpool_worker.policy import Reply

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Calculate 5 + 3"}]
REPLY = Reply(
    message={"role": "assistant", "content": "8"},
    finish_reason="stop",
    token_ids=[],
    logprobs=[],
    prompt_token_ids=None,
    prefix=0,
    policy_version=None,
    keeps_ids=None,
    fingerprint=None,
)


async def test_there_are_no_tokens() -> None:
    tokens = NoTokens()
    await tokens.append(ASK, [], 1)
    await tokens.replace(ASK, 1)
    tokens.resume(TrainerKind.KEEPS_IDS, ASK)
    assert await tokens.ingest_reply(REPLY, ASK, AskedTurn(1), train=True) == VerifiedEcho(DriftLabel.UNVERIFIED, None)
    assert tokens.stop_of(REPLY) is StopToken.ABSENT
    assert (tokens.ledger.entries, tokens.ledger.samples(), tokens.warnings) == ((), [], ())
    assert tokens.kind is tokens.found_kind is TrainerKind.UNKNOWN
