"""The attachments of one attempt: as many as were promised, and a report of what is missing."""

from typing import Any

from tests.support.conversations import spec_of

from rolloutpool_common.capabilities.engines.attachments import AttachmentLack
from rolloutpool_common.capabilities.engines.kept import PackedArray, PackedPiece, read_pieces
from rolloutpool_common.capabilities.engines.wire import AttachmentKind, AttachmentsReport
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import Sample, SampleSegment
from rolloutpool_worker.capabilities.engines.turn_attachments import TurnAttachments

ROUTED, MASK = AttachmentKind.ROUTED_EXPERTS, AttachmentKind.SAMPLING_MASK


def spec(*attach: str, **fields: Any) -> RolloutSpec:
    return spec_of(protocol="vllm", attach=attach, **fields)


def piece(turn: int, n: int = 2, kind: AttachmentKind = ROUTED, size: int = 1000, **more: Any) -> PackedPiece:
    arrays = {"experts": PackedArray("|u1", (n, size), bytes(size))}
    return PackedPiece(kind=kind, turn=turn, first=0, n=n, digest="", start=0, rows=n, arrays=arrays, **more)


def sample(*turns: tuple[int, int]) -> Sample:
    """Turns with so many ids each, and an observation between two."""
    segments, at = [], 0
    for turn, n in turns:
        segments.append(SampleSegment(kind="sampled", start=at, n=n, turn=turn))
        segments.append(SampleSegment(kind="glue", start=at + n, n=3, turn=turn))
        at += n + 3
    ids = [0] * at
    return Sample(prompt_ids=[1], response_ids=ids, response_mask=ids, response_logprobs=[0.0] * at, segments=segments)


def reported(kept: TurnAttachments, samples: list[Sample]) -> AttachmentsReport:
    """What the result says; it warns exactly where something is missing."""
    fields, warnings = kept.fields(samples)
    report = fields["attachments"]
    assert isinstance(report, AttachmentsReport)
    assert warnings == (["attachments_missing"] if any(report.missing.values()) else [])
    return report


def _without_arrays(kept: TurnAttachments) -> TurnAttachments:
    bare = TurnAttachments(spec(ROUTED), 100_000)
    bare.add([PackedPiece(**{**vars(one), "arrays": {}}) for one in kept._pieces])
    return bare


def test_no_more_is_kept_than_was_promised() -> None:
    kept = TurnAttachments(spec(ROUTED), 3500)
    kept.add([piece(turn) for turn in range(1, 5)])
    found = read_pieces(_without_arrays(kept).record())
    assert [one.lacks for one in found] == [None, None, AttachmentLack.TOO_LARGE, AttachmentLack.TOO_LARGE]
    assert len(kept.record()) < 3500
    # A small one may still fit.
    kept.add([piece(5, size=10)])
    report = reported(kept, [sample(*((turn, 2) for turn in range(1, 6)))])
    assert report.missing == {ROUTED: 2}


def test_nothing_is_said_where_nothing_was_sampled() -> None:
    kept = TurnAttachments(spec(ROUTED), 100_000)
    assert kept.fields([]) == ({}, [])
    assert kept.record() == b""
