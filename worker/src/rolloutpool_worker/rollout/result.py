"""From the ledger's samples to the record's."""

from rolloutpool_common.protocol.result import Sample, SampleSegment
from rolloutpool_common.tokens.ledger import TokenLedger

__all__ = ["samples_of"]


def samples_of(ledger: TokenLedger) -> list[Sample]:
    """The training sequences of a rollout, each sampled token in exactly one of them; none before the first turn."""
    if not len(ledger):
        return []
    return [
        Sample(
            prompt_ids=list(sample.prompt_ids),
            response_ids=list(sample.response_ids),
            response_mask=list(sample.response_mask),
            response_logprobs=list(sample.response_logprobs),
            segments=[
                SampleSegment(
                    kind=segment.kind.value,
                    start=segment.start,
                    n=segment.n,
                    turn=segment.turn,
                    policy_version=segment.policy_version,
                )
                for segment in sample.segments
            ],
        )
        for sample in ledger.samples()
    ]
