"""Training samples: what a ledger gives, and what a result carries over the wire.

A sample is the context up to its last sampled id. The prompt is everything before the first sampled id.

    context   1 2 3   10 11   99        20 21   12      30
    kind      prompt  sampled synth_... glue    sampled glue
    sample    prompt  |<------- response ----------->|  (left out: the policy never answered it)
    mask              1  1    0         0  0    1
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from rolloutpool_common.tokens.arrays import sliced
from rolloutpool_common.tokens.segments import Segment, SegmentKind, mask_of
from rolloutpool_common.tokens.versions import version_bounds

# `value` of an enumeration's member is four calls of functions.
_KINDS = {kind: kind.value for kind in SegmentKind}


class SampleSegment(BaseModel):
    """A run of response tokens with one origin."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """sampled, glue or synth_close; see `SegmentKind`. Text, so that clients can read kinds that come later."""
    start: int
    """Offset into `response_ids`."""
    n: int
    """Number of ids."""
    turn: int
    """The model call that sampled it or after which it was appended, from 1."""
    policy_version: str | None = None
    """The trainer's name for the weights that sampled it."""


class Sample(BaseModel):
    """One training sequence: the policy saw `prompt_ids` + `response_ids` in this order."""

    model_config = ConfigDict(frozen=True)

    prompt_ids: list[int]
    """[P]; what the policy saw before its first token of this sample. Mask 0 throughout."""
    response_ids: list[int]
    """[R]; from the first sampled token to the last."""
    response_mask: list[int]
    """[R]; 1 where the policy sampled the token and it is trained, else 0."""
    response_logprobs: list[float]
    """[R]; the sampling policy's log-probability (natural logarithm) where the mask is 1, else 0.0."""
    segments: list[SampleSegment]
    """Runs of one origin that tile the response without a gap: `kind` (`sampled`, `glue`, `synth_close`), `start`, `n`,
    `turn`, `policy_version`."""
    logprobs_mode: str | None = None
    """Of which distribution the log-probabilities are: `raw` (before temperature and top-p) or `processed` (the one
    that was sampled from); null where the trainer does not say."""
    version_min: int | None = None
    """Of the oldest weights that sampled any of it; null unless all versions are decimal integers, known exactly."""
    version_max: int | None = None
    """Of the newest; null unless all versions are decimal integers."""


@dataclass(frozen=True, slots=True)
class ClosedSample:
    """A sample that has ended, as the ledger keeps it: only what differs from the one before it.

    Its ids are the previous sample's first `shared` ids, then `own`; forks share long prompts.
    """

    shared: int
    own: "array[int]"
    segments: tuple[Segment, ...]
    """Tile the context up to the last sampled id."""


def sample_of(ids: "array[int]", segments: Sequence[Segment]) -> Sample:
    """The sample of a context."""
    sampled = [segment for segment in segments if segment.kind is SegmentKind.SAMPLED]
    start, end = sampled[0].start, sampled[-1].end
    response = [segment for segment in segments if start <= segment.start < end]
    oldest, newest = version_bounds(segment.policy_version for segment in sampled)
    # Not validated: the ledger has checked every number, and a second look at 100,000 of them takes milliseconds.
    return Sample.model_construct(
        prompt_ids=_listed(ids, 0, start),
        response_ids=_listed(ids, start, end),
        response_mask=mask_of(response),
        response_logprobs=_logprobs_of(response),
        segments=[
            SampleSegment(
                kind=_KINDS[segment.kind],
                start=segment.start - start,
                n=segment.n,
                turn=segment.turn,
                policy_version=segment.policy_version,
            )
            for segment in response
        ],
        version_min=oldest,
        version_max=newest,
    )


def _listed(ids: "array[int]", start: int, end: int) -> list[int]:
    found: list[int] = []
    for part in sliced(ids[start:end]):
        found += part
    return found


def _logprobs_of(response: Sequence[Segment]) -> list[float]:
    found: list[float] = []
    for segment in response:
        found += segment.logprobs if segment.trained else [0.0] * segment.n
    return found
