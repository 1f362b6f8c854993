"""The tokens so far, as a trainer is sent them that has forgotten a rollout's session.

A trainer that was restarted knows none of its rollouts. The ledger has what it needs to go on: the ids up to the last
sampled one, all of them proved by earlier echoes, and which of them were sampled. What follows these ids is left out,
because the trainer renders it itself at every turn.
"""

from rolloutpool_common.protocol.completions import PastTokens
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.segments import SegmentKind


def past_tokens(ledger: TokenLedger) -> PastTokens:
    """Says which ids the current sample has, and which of them each turn sampled."""
    turns: dict[int, tuple[int, int]] = {}
    for segment in ledger.segments:
        if segment.kind is SegmentKind.SAMPLED:
            # A turn may be in several parts, with nothing between them.
            start, _ = turns.get(segment.turn, (segment.start, 0))
            turns[segment.turn] = start, segment.end
    return PastTokens(
        token_ids=ledger.ids[: ledger.head], digest=ledger.head_digest.hex(), sampled=list(turns.values())
    )
