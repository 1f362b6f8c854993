"""What a rollout waits for is its worker's note, else what the pool lacks, else nothing."""

from datetime import UTC, datetime, timedelta

from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store.outside_ends import wait_of
from rolloutpool_common.store.pool_waits import PoolState

NOW = datetime.now(UTC)
NOTED = Waiting(
    waits_for=WaitsFor.TRAINER, endpoint="http://t", message="503", tries=2, next_try=NOW + timedelta(seconds=1)
)
EMPTY = PoolState(())


def test_the_note_comes_first() -> None:
    note = b"2 " + NOTED.model_dump_json().encode()
    assert wait_of({}, b"queued", b"2", note, EMPTY, NOW.timestamp()) == NOTED
    assert wait_of({}, b"running", b"2", note, None, NOW.timestamp()) == NOTED
    later = wait_of({}, b"queued", b"3", note, EMPTY, NOW.timestamp())
    assert later is not None
    assert later.waits_for is WaitsFor.WORKER


def test_what_runs_and_was_not_noted_does_not_wait() -> None:
    assert wait_of({}, b"running", b"1", None, EMPTY, NOW.timestamp()) is None
    assert wait_of({}, b"queued", b"1", None, None, NOW.timestamp()) is None
