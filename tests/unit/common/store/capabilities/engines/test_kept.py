"""Attachments are stored with the end of their conversation, promised at admission, and deleted with their batch."""

import pytest
import zstandard
from tests.support.batches import claim, finish, new_batch, result_of, uids_of, view_of

from rolloutpool_common.capabilities.engines.attachments import AttachmentLack
from rolloutpool_common.capabilities.engines.kept import (
    PackedArray,
    PackedPiece,
    read_pieces,
    read_record,
    write_pieces,
)
from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.capabilities.grading.kept import KeptRollouts
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.store import Store
from rolloutpool_common.store.errors import ClaimLost

EXPERTS = PackedArray.of("|u1", (4, 2), bytes(range(8)))
PIECES = [
    PackedPiece(
        kind=AttachmentKind.ROUTED_EXPERTS,
        turn=1,
        first=3,
        n=2,
        digest="d",
        start=0,
        rows=4,
        arrays={"experts": EXPERTS},
    ),
    PackedPiece(
        kind=AttachmentKind.SAMPLING_MASK, turn=1, first=3, n=2, digest="d", start=3, lacks=AttachmentLack.NOT_SENT
    ),
]
RECORD = write_pieces(PIECES)


def test_a_record_gives_back_what_was_written() -> None:
    routed, mask = read_pieces(RECORD)
    assert (routed.kind, routed.turn, routed.first, routed.n, routed.start, routed.rows) == (
        "routed_experts",
        1,
        3,
        2,
        0,
        4,
    )
    assert (routed.arrays["experts"].dtype, routed.arrays["experts"].shape) == ("|u1", [4, 2])
    assert (routed.arrays["experts"].data, routed.lacks) == (bytes(range(8)), None)
    assert (mask.lacks, mask.rows, mask.arrays) == ("not_sent", 0, {})
    assert read_pieces(write_pieces([])) == []
    assert zstandard.decompress(EXPERTS.data) == bytes(range(8))
    # Bytes that look like the end of the line before them do no harm.
    odd = PackedArray("|u1", (3,), zstandard.compress(b"\n[\n"))
    piece = PackedPiece(kind=AttachmentKind.ROUTED_EXPERTS, turn=2, first=0, n=1, digest="", start=0, arrays={"x": odd})
    assert [one.arrays["x"].data for one in read_pieces(write_pieces([piece, piece]))] == [b"\n[\n"] * 2


async def reserved(store: Store) -> int:
    """What open rollouts may still attach; these tests reserve nothing else."""
    return (await store.usage.read()).total.reserved


async def test_they_come_with_the_result_and_go_with_the_batch(store: Store) -> None:
    batch = new_batch(2, attaches=True, attachment_bytes=1000)
    await store.batches.submit(batch)
    first, second = uids_of(batch)
    assert await reserved(store) == 2000
    held = await claim(store, first)
    await store.rollouts.finish(held, result_of(held), attachments=RECORD)
    # The same call again, because its answer was lost.
    await store.rollouts.finish(held, result_of(held), attachments=RECORD)
    assert await read_record(store, first) == RECORD
    assert await read_record(store, second) is None
    assert await reserved(store) == 1000
    await store.rollouts.cancel(second)
    assert await reserved(store) == 0
    await store.batches.delete(batch.batch_id)
    assert await read_record(store, first) is None


async def test_a_worker_that_lost_the_rollout_stores_nothing_beside_the_result(store: Store) -> None:
    batch = new_batch(attaches=True, attachment_bytes=1000)
    await store.batches.submit(batch)
    (uid,) = uids_of(batch)
    lost = await claim(store, uid)
    await store.rollouts.give_back(lost, clean=True, counter="retries", delay_s=0)
    await finish(store, uid, "w2")
    assert await store.rollouts.give_back(lost, clean=True, counter="retries", delay_s=0) is False
    with pytest.raises(ClaimLost):
        await store.rollouts.finish(lost, result_of(lost, status=RolloutStatus.FAILED), attachments=RECORD)
    assert await read_record(store, uid) is None


async def test_a_batch_that_asks_for_none_promises_none(store: Store) -> None:
    await store.batches.submit(new_batch(3, attachment_bytes=1000))
    assert await reserved(store) == 0


async def test_what_is_kept_for_a_grader_keeps_them_until_it_is_cancelled(store: Store) -> None:
    batch = new_batch(2, attaches=True, attachment_bytes=1000, asks={"grading": True})
    await store.batches.submit(batch)
    delivered, cancelled = uids_of(batch)
    for uid in (delivered, cancelled):
        held = await claim(store, uid)
        await KeptRollouts(store).begin(held, result_of(held), seconds=60, group=None, attachments=RECORD)
        assert await read_record(store, uid) == RECORD
        if uid == delivered:
            # By another process, which has only the grade.
            await store.rollouts.finish(held, result_of(held, reward=1.0))
    assert await read_record(store, delivered) == RECORD
    await store.rollouts.cancel(cancelled)
    view = await view_of(store, cancelled)
    assert view.result is not None
    assert view.result["finish_reason"] == FinishReason.CANCELLED
    assert await read_record(store, cancelled) is None
