"""The attachments of one attempt: as many as were promised, and a report of what is missing."""

from typing import Any

from rolloutpool_common.capabilities.engines.attachments import AttachmentLack
from rolloutpool_common.capabilities.engines.kept import PackedArray, PackedPiece, read_pieces
from rolloutpool_common.capabilities.engines.wire import AttachmentKind, AttachmentsReport
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import Sample, SampleSegment
from rolloutpool_worker.capabilities.engines.turn_attachments import TurnAttachments

ROUTED, MASK = AttachmentKind.ROUTED_EXPERTS, AttachmentKind.SAMPLING_MASK


def spec(*attach: str, **fields: Any) -> RolloutSpec:
    known = {"rollout_id": "r", "server_url": "http://e", "messages": [], "tokenizer_name": "t", "sampling_params": {}}
    return RolloutSpec.model_validate({**known, "protocol": "vllm", "attach": attach, **fields})


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


def test_all_that_was_sampled_is_there() -> None:
    kept = TurnAttachments(spec(ROUTED, MASK), 100_000)
    kept.add([piece(1), piece(1, kind=MASK)])
    # A turn in two calls, because the engine has aborted the first.
    kept.add([piece(2, 1), piece(2, 1, MASK), piece(2, 3), piece(2, 3, MASK)])
    report = reported(kept, [sample((1, 2)), sample((2, 4))])
    assert report.missing == {ROUTED: 0, MASK: 0}
    assert [found.turn for found in read_pieces(_without_arrays(kept).record())] == [1, 1, 2, 2, 2, 2]
    assert report.bytes == 6 * 1200


def _without_arrays(kept: TurnAttachments) -> TurnAttachments:
    bare = TurnAttachments(spec(ROUTED), 100_000)
    bare.add([PackedPiece(**{**vars(one), "arrays": {}}) for one in kept._pieces])
    return bare


def test_what_an_earlier_attempt_had_is_missing() -> None:
    kept = TurnAttachments(spec(ROUTED, MASK), 100_000)
    kept.add([piece(3), piece(3, kind=MASK, lacks=AttachmentLack.NOT_SENT)])
    report = reported(kept, [sample((1, 2), (2, 2), (3, 2))])
    assert report.missing == {ROUTED: 2, MASK: 3}


def test_half_of_a_turn_is_not_the_turn() -> None:
    kept = TurnAttachments(spec(ROUTED), 100_000)
    kept.add([piece(1, 2), piece(1, 3, lacks=AttachmentLack.UNUSABLE)])
    report = reported(kept, [sample((1, 5))])
    assert report.missing == {ROUTED: 1}


def test_turns_before_its_own_have_theirs_elsewhere() -> None:
    kept = TurnAttachments(spec(ROUTED), 100_000, 3)
    kept.add([piece(3)])
    report = reported(kept, [sample((1, 2), (2, 2), (3, 2))])
    assert report.missing == {ROUTED: 0}


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


def test_without_a_promise_nothing_is_kept() -> None:
    kept = TurnAttachments(spec(ROUTED), 0)
    kept.add([piece(1)])
    assert kept.record() == b""
    report = reported(kept, [sample((1, 2))])
    assert (report.missing, report.bytes) == ({ROUTED: 1}, 0)
