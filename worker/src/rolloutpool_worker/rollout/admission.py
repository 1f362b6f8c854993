"""The admission checks: which tokenizer a rollout runs with, and what a result must be before it counts as completed.

A broken trace that is delivered as "completed" is worse than a failure, because nothing draws attention to it. So each
result is compared with itself and with the ledger once more. A result that fails is kept as evidence, and the rollout
fails.
"""

import math
from array import array
from collections.abc import Iterator, Sequence

from rolloutpool_common.errors import ResultQuarantined, TokenizerMismatch
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.tokens.arrays import sliced, unpack_all
from rolloutpool_common.tokens.entries import SampledEntry
from rolloutpool_common.tokens.ledger import TokenLedger


def check_declared(spec: RolloutSpec, name: str, ours: dict[str, str]) -> None:
    """Raises `TokenizerMismatch` where the trainer declared another tokenizer than this worker loaded."""
    declared = {} if spec.declared_tokenizer is None else spec.declared_tokenizer.model_dump(exclude_none=True)
    known = {**ours, "revision": spec.tokenizer_revision}
    differing = [
        f"{what}: the trainer declared {theirs[:200]!r}, this worker has {known[what]!r}"
        for what, theirs in declared.items()
        if known[what] != theirs
    ]
    if differing:
        raise TokenizerMismatch(f"{name!r}: {'; '.join(differing)}; give both the same files and versions")


def check_result(
    result: RolloutResult, ledgers: Sequence[TokenLedger], *, vocab_size: int, allow_untrained: bool
) -> None:
    """Checks a result."""
    for fault in _faults(result, ledgers, vocab_size, allow_untrained):
        raise ResultQuarantined(f"{ResultQuarantined.__doc__} {fault}")


def _faults(
    result: RolloutResult, ledgers: Sequence[TokenLedger], vocab_size: int, allow_untrained: bool
) -> Iterator[str]:
    kept: list[int] = []
    for number, sample in enumerate(result.samples):
        yield from (f"Sample {number}: {fault}" for fault in _sample_faults(sample, vocab_size))
        for segment in sample.segments:
            if segment.kind == "sampled":
                kept += sample.response_ids[segment.start : segment.start + segment.n]
    # From the journal's entries, which hold the trainer's replies; the samples were derived another way.
    sampled = [entry.ids for ledger in ledgers for entry in ledger.entries if isinstance(entry, SampledEntry)]
    if kept != unpack_all(sampled, array("I")).tolist():
        yield "the samples do not hold every sampled token exactly once"
    if len(kept) != result.response_tokens:
        yield f"{len(kept)} sampled tokens in the samples, {result.response_tokens} in the turns"
    if not allow_untrained and not any(1 in sample.response_mask for sample in result.samples):
        yield "no token is trained (allow_untrained would accept that)"


def _sample_faults(sample: Sample, vocab_size: int) -> Iterator[str]:
    length = len(sample.response_ids)
    # A trainer pairs the three by position, so one value too few shifts all that follow.
    if not len(sample.response_mask) == len(sample.response_logprobs) == length:
        yield f"{length} ids, {len(sample.response_mask)} mask values, {len(sample.response_logprobs)} logprobs"
    # In slices, because a worker's thread does this while its event loop goes on.
    if not all(set(part) <= {0, 1} for part in sliced(sample.response_mask)):
        yield "a mask value is neither 0 nor 1"
    if not all(all(map(math.isfinite, part)) for part in sliced(sample.response_logprobs)):
        yield "a log-probability is not finite"
    for ids in (sample.prompt_ids, sample.response_ids):
        if ids and not all(0 <= min(part) <= max(part) < vocab_size for part in sliced(ids)):
            yield "an id is outside the vocabulary"
    at = 0
    for segment in sample.segments:
        if segment.start != at or segment.n < 0:
            yield "the segments do not tile the response"
        at = segment.start + segment.n
        # It would train the policy on text that it did not write.
        if segment.kind != "sampled" and any(sample.response_mask[segment.start : at]):
            yield f"a {segment.kind} token has mask 1"
    if at != length:
        yield "the segments do not cover the response"
