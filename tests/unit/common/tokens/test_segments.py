"""The mask of an id follows from its segment alone: 1 where the policy sampled it and it is to be trained."""

from rolloutpool_common.tokens.segments import Segment, SegmentKind, mask_of

PROMPT = Segment(SegmentKind.PROMPT, 0, 2, 0)
SAMPLED = Segment(SegmentKind.SAMPLED, 2, 3, 1, (-0.1, -0.2, -0.3), train=True)
GLUE = Segment(SegmentKind.GLUE, 5, 1, 1)
UNTRAINED = Segment(SegmentKind.SAMPLED, 6, 1, 2, (-0.4,))


def test_only_trained_sampled_ids_have_mask_1() -> None:
    assert mask_of([PROMPT, SAMPLED, GLUE, UNTRAINED]) == [0, 0, 1, 1, 1, 0, 0]
    # Nothing but a sampled id can be trained, whatever its segment says.
    assert not Segment(SegmentKind.GLUE, 0, 1, 1, train=True).trained
