"""A mask follows from the segments, and a cut keeps what lies before it."""

from rolloutpool_common.tokens.segments import Segment, SegmentKind, cut, mask_of

PROMPT = Segment(SegmentKind.PROMPT, 0, 3, 0)
SAMPLED = Segment(SegmentKind.SAMPLED, 3, 2, 1, (-0.5, -0.25), "v1", train=True)
GLUE = Segment(SegmentKind.GLUE, 5, 1, 1)
UNTRAINED = Segment(SegmentKind.SAMPLED, 6, 2, 2, (-1.0, -2.0))
ALL = [PROMPT, SAMPLED, GLUE, UNTRAINED]


def test_only_sampled_and_trained_ids_have_mask_1() -> None:
    assert mask_of(ALL) == [0, 0, 0, 1, 1, 0, 0, 0]
    # Nothing but sampled ids can be trained.
    assert not Segment(SegmentKind.GLUE, 0, 1, 1, train=True).trained


def test_segments_tile_the_context() -> None:
    assert [segment.start for segment in ALL[1:]] == [segment.end for segment in ALL[:-1]]


def test_a_cut_at_a_border_keeps_segments_whole() -> None:
    assert cut(ALL, 0) == []
    assert cut(ALL, 5) == [PROMPT, SAMPLED]
    assert cut(ALL, 8) == cut(ALL, 100) == ALL


def test_a_cut_inside_a_segment_shortens_it() -> None:
    assert cut(ALL, 4) == [PROMPT, Segment(SegmentKind.SAMPLED, 3, 1, 1, (-0.5,), "v1", train=True)]
    assert cut(ALL, 2) == [Segment(SegmentKind.PROMPT, 0, 2, 0)]
