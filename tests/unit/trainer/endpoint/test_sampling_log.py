"""The log counts samplings, and stays within its room."""

from rolloutpool_trainer.endpoint.sampling_log import RECORD_COST, LoggedTurn, SamplingLog


def turn(rollout_id: str, number: int, uid: str | None = None, n: int = 3) -> LoggedTurn:
    return LoggedTurn(rollout_id, uid, number, 1, tuple(range(n)))


def test_the_same_name_in_two_batches_is_no_repetition() -> None:
    log = SamplingLog()
    log.add(turn("a", 1, uid="u1"))
    log.add(turn("a", 1, uid="u2"))
    assert log.repeated() == {}
    log.add(turn("a", 1, uid="u2"))
    assert log.repeated() == {("u2", 1): 2}


def test_the_oldest_records_go() -> None:
    log = SamplingLog(max_tokens=2 * (3 + RECORD_COST))
    for number in range(1, 6):
        log.add(turn("a", number))
    assert [record.turn for record in log] == [4, 5]


def test_a_record_larger_than_the_room_is_kept_alone() -> None:
    log = SamplingLog(max_tokens=10)
    log.add(turn("a", 1))
    log.add(turn("a", 2, n=1000))
    assert [record.turn for record in log] == [2]
