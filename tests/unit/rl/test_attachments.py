"""Attachments beside the tokens of samples: at the right places, missing where they are missing, never another's."""

from typing import Any

import numpy as np
import pytest

from rolloutpool_common.capabilities.engines.attachments import (
    AttachedArray,
    AttachedPiece,
    AttachmentLack,
    piece_digest,
)
from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Sample, SampleSegment
from rolloutpool_rl.attachments import routed_experts, sampling_masks
from rolloutpool_rl.errors import AttachmentForeign, ShapeMismatch

ROUTED, MASK = AttachmentKind.ROUTED_EXPERTS, AttachmentKind.SAMPLING_MASK
CONTEXT = [1, 2, 3, 10, 11, 20, 21, 12, 13]
"""The example of `protocol/attachments.py`."""


def result(context: list[int] = CONTEXT) -> RolloutResult:
    segments = [
        SampleSegment(kind="sampled", start=0, n=2, turn=1),
        SampleSegment(kind="glue", start=2, n=2, turn=1),
        SampleSegment(kind="sampled", start=4, n=2, turn=2),
    ]
    sample = Sample(
        prompt_ids=context[:3],
        response_ids=context[3:],
        response_mask=[1, 1, 0, 0, 1, 1],
        response_logprobs=[0.0] * 6,
        segments=segments,
    )
    return RolloutResult(
        uid="b-0",
        rollout_id="r",
        batch_id="b",
        index=0,
        status=RolloutStatus.COMPLETED,
        finish_reason=FinishReason.STOP,
        samples=[sample],
    )


def array(values: Any, dtype: str) -> AttachedArray:
    made = np.array(values, dtype)
    return AttachedArray(dtype=made.dtype.str, shape=list(made.shape), data=made.tobytes())


def piece(kind: AttachmentKind, turn: int, first: int, start: int, rows: int, **more: Any) -> AttachedPiece:
    digest = piece_digest(CONTEXT[first : first + 2])
    fields = {"kind": kind, "turn": turn, "first": first, "n": 2, "digest": digest, "start": start, "rows": rows}
    return AttachedPiece(**{**fields, **more})


def routed(turn: int, first: int, start: int, rows: int, dtype: str = "|u1") -> AttachedPiece:
    values = [[[100 + place]] for place in range(start, start + rows)]
    return piece(ROUTED, turn, first, start, rows, arrays={"experts": array(values, dtype)})


def mask(turn: int, first: int, *masks: list[int]) -> AttachedPiece:
    arrays = {"lengths": array(list(map(len, masks)), "<u4"), "ids": array([i for ids in masks for i in ids], "<u4")}
    return piece(MASK, turn, first, first, 2, arrays=arrays)


def test_what_is_missing_is_marked() -> None:
    lacking = piece(ROUTED, 1, 3, 0, 0, lacks=AttachmentLack.NOT_SENT)
    for pieces in ([routed(2, 7, 4, 4)], [lacking, routed(2, 7, 4, 4)]):
        (found,) = routed_experts(result(), pieces)
        assert found.present.tolist() == [False] * 4 + [True] * 4
        assert found.turns.tolist() == [0] * 4 + [2] * 4
    (none,) = routed_experts(result(), [])
    assert not none.present.any()
    assert none.experts.shape == (8, 0)


def test_masks_stand_beside_sampled_ids() -> None:
    pieces = [mask(2, 7, [12, 4], [13]), mask(1, 3, [10], [9, 11, 8])]
    (found,) = sampling_masks(result(), pieces)
    assert found.present.tolist() == [True, True, False, False, True, True]
    by_id = [found.ids[a:b].tolist() for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)]
    assert by_id == [[10], [9, 11, 8], [], [], [12, 4], [13]]
    (half,) = sampling_masks(result(), pieces[:1])
    assert half.offsets.tolist() == [0, 0, 0, 0, 0, 2, 3]
    assert np.isnan(half.logprobs).all()


@pytest.mark.parametrize("read", [routed_experts, sampling_masks])
def test_the_pieces_of_another_rollout_are_an_error(read: Any) -> None:
    other = result([1, 2, 3, 10, 99, 20, 21, 12, 13])
    with pytest.raises(AttachmentForeign, match="turn 1"):
        read(other, [routed(1, 3, 0, 4), mask(1, 3, [10], [11])])
    # A turn that the result does not deliver has no place.
    assert len(read(other, [routed(5, 3, 0, 4), mask(5, 3, [10], [11])])) == 1


def test_rows_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ShapeMismatch):
        routed_experts(result(), [routed(1, 3, 0, 4), routed(2, 7, 4, 4, "<i4")])
    with pytest.raises(ShapeMismatch):
        routed_experts(result(), [routed(2, 7, 6, 4)])
    wrong = mask(1, 3, [10], [11]).model_copy(update={"rows": 3})
    with pytest.raises(ShapeMismatch):
        sampling_masks(result(), [wrong])
