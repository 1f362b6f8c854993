"""A sample is the context up to its last sampled id, and is valid on the wire without having been validated."""

from array import array

from rolloutpool_common.tokens.samples import Sample, SampleSegment, sample_of
from rolloutpool_common.tokens.segments import Segment, SegmentKind

SEGMENTS = [
    Segment(SegmentKind.PROMPT, 0, 3, 0),
    Segment(SegmentKind.SAMPLED, 3, 2, 1, (-0.5, -0.25), "v1", train=True),
    Segment(SegmentKind.SYNTH_CLOSE, 5, 1, 1),
    Segment(SegmentKind.GLUE, 6, 2, 1),
    Segment(SegmentKind.SAMPLED, 8, 1, 2, (-1.0,)),
    Segment(SegmentKind.GLUE, 9, 1, 2),
]
IDS = array("I", [1, 2, 3, 10, 11, 99, 20, 21, 12, 30])

EXPECTED = Sample(
    prompt_ids=[1, 2, 3],
    response_ids=[10, 11, 99, 20, 21, 12],
    response_mask=[1, 1, 0, 0, 0, 0],
    response_logprobs=[-0.5, -0.25, 0.0, 0.0, 0.0, 0.0],
    segments=[
        SampleSegment(kind="sampled", start=0, n=2, turn=1, policy_version="v1"),
        SampleSegment(kind="synth_close", start=2, n=1, turn=1),
        SampleSegment(kind="glue", start=3, n=2, turn=1),
        SampleSegment(kind="sampled", start=5, n=1, turn=2),
    ],
)


def test_the_sample_of_a_context() -> None:
    assert sample_of(IDS, SEGMENTS) == EXPECTED
