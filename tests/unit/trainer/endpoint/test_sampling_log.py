"""The transcript counts samplings, and stays within its room."""

from rolloutpool_trainer.endpoint.sampling_log import RECORD_COST, LoggedTurn, SamplingLog


def turn(rollout_id: str, number: int, uid: str | None = None, n: int = 3) -> LoggedTurn:
    return LoggedTurn(rollout_id, uid, number, 1, tuple(range(n)))


def test_counts_samplings_per_turn() -> None:
    transcript = SamplingLog()
    for record in (turn("a", 1), turn("a", 2), turn("b", 1), turn("a", 2)):
        transcript.add(record)
    assert transcript.count("a", 1) == 1
    assert transcript.count("a", 2) == 2
    assert transcript.count("c", 1) == 0
    assert [record.turn for record in transcript.of("a")] == [1, 2, 2]
    assert transcript.repeated() == {("a", 2): 2}
    assert len(transcript) == len(list(transcript)) == 4


def test_the_same_name_in_two_batches_is_no_repetition() -> None:
    transcript = SamplingLog()
    transcript.add(turn("a", 1, uid="u1"))
    transcript.add(turn("a", 1, uid="u2"))
    assert transcript.repeated() == {}
    transcript.add(turn("a", 1, uid="u2"))
    assert transcript.repeated() == {("u2", 1): 2}


def test_the_oldest_records_go() -> None:
    transcript = SamplingLog(max_tokens=2 * (3 + RECORD_COST))
    for number in range(1, 6):
        transcript.add(turn("a", number))
    assert [record.turn for record in transcript] == [4, 5]


def test_a_record_larger_than_the_room_is_kept_alone() -> None:
    transcript = SamplingLog(max_tokens=10)
    transcript.add(turn("a", 1))
    transcript.add(turn("a", 2, n=1000))
    assert [record.turn for record in transcript] == [2]
