"""The mask of an id follows from its segment alone: 1 where the policy sampled it and it is to be trained."""

import pytest

from rolloutpool_common.tokens.segments import Segment, SegmentKind, cut, mask_of

PROMPT = Segment(SegmentKind.PROMPT, 0, 2, 0)
SAMPLED = Segment(SegmentKind.SAMPLED, 2, 3, 1, (-0.1, -0.2, -0.3), train=True)
GLUE = Segment(SegmentKind.GLUE, 5, 1, 1)
UNTRAINED = Segment(SegmentKind.SAMPLED, 6, 1, 2, (-0.4,))


def test_only_trained_sampled_ids_have_mask_1() -> None:
    assert mask_of([PROMPT, SAMPLED, GLUE, UNTRAINED]) == [0, 0, 1, 1, 1, 0, 0]
    # Nothing but a sampled id can be trained, whatever its segment says.
    assert not Segment(SegmentKind.GLUE, 0, 1, 1, train=True).trained


@pytest.mark.parametrize(
    ("end", "lengths"), [(0, []), (2, [2]), (3, [2, 1]), (5, [2, 3]), (6, [2, 3, 1]), (99, [2, 3, 1, 1])]
)
def test_what_is_cut_covers_the_first_ids(end: int, lengths: list[int]) -> None:
    kept = cut([PROMPT, SAMPLED, GLUE, UNTRAINED], end)
    assert [segment.n for segment in kept] == lengths
    assert all(len(segment.logprobs) == segment.n for segment in kept if segment.kind is SegmentKind.SAMPLED)
