"""The judge of deaths convicts: each false death shows, and an excuse holds only where the campaign gave it."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.chaos.deaths import Deaths, Declared, declarations, judge_deaths

Entry = dict[str, Any]

WORKER: Entry = {"event": "member", "worker": "w", "pid": 7, "host": "host-0", "isolated": False, "at": 0.0}
BEGIN: Entry = {"event": "begin", "at": 0.0}


def judged(*notes: Entry, at: float = 100.0) -> Deaths:
    """The verdict where worker `w` was declared dead at this time."""
    return judge_deaths([BEGIN, WORKER, *notes], [Declared("w", at)])


def gone(at: float) -> Entry:
    return {"event": "gone", "worker": "w", "pid": 7, "host": "host-0", "at": at}


def fault(kind: str, begin: float, end: float, **more: object) -> list[Entry]:
    about = {"kind": kind, "target": "host-0"}
    return [{"event": "fault", **about, **more, "at": begin}, {"event": "over", **about, "at": end}]


def test_a_process_that_had_ended_is_a_true_death() -> None:
    deaths = judged(gone(98.0))
    assert (deaths.true, deaths.false) == (1, [])


def test_a_process_that_lives_is_a_false_death() -> None:
    assert judged().false == ["w (host-0) 100.0 s after the begin"]


def test_a_process_that_ended_long_afterwards_is_a_false_death() -> None:
    assert len(judged(gone(110.0)).false) == 1


@pytest.mark.parametrize("kind", ["stop", "stop for 20 s", "hold the GIL"])
def test_a_short_stop_is_no_excuse(kind: str) -> None:
    assert len(judged(*fault(kind, 85.0, 105.0, pids=[7])).false) == 1


def test_a_pause_of_redis_is_no_excuse() -> None:
    notes = fault("pause redis", 75.0, 105.0)
    assert len(judged(*[{**note, "target": "redis"} for note in notes]).false) == 1


@pytest.mark.parametrize("kind", ["stop beyond the limit", "cut off a host"])
def test_silence_beyond_the_limit_is_counted_apart(kind: str) -> None:
    deaths = judged(*fault(kind, 35.0, 105.0, pids=[7]))
    assert (deaths.beyond_limit, deaths.false) == (1, [])


@pytest.mark.parametrize(
    "broken", [{"event": "ended", "name": "redis"}, {"event": "fault", "kind": "cut", "target": "host-0"}]
)
def test_a_host_that_was_cut_off_while_its_lifelines_ended_is_counted_apart(broken: Entry) -> None:
    cut_off = fault("cut off a host", 85.0, 150.0)
    assert judged(*cut_off, {**broken, "at": 89.0}).cut_off == 1
    # Before it was cut off, or after the verdict, that explains nothing.
    assert len(judged(*cut_off, {**broken, "at": 84.0}).false) == 1
    assert len(judged(*cut_off, {**broken, "at": 120.0}).false) == 1


@pytest.mark.parametrize("kind", ["stop beyond the limit", "cut off a host"])
def test_before_the_limit_it_is_a_false_death(kind: str) -> None:
    assert len(judged(*fault(kind, 80.0, 150.0, pids=[7])).false) == 1


def test_another_process_that_was_stopped_is_no_excuse() -> None:
    assert len(judged(*fault("stop beyond the limit", 35.0, 105.0, pids=[8])).false) == 1


def test_refused_connections_are_counted_apart() -> None:
    deaths = judged(*fault("refuse", 97.0, 101.0))
    assert (deaths.cut_off, deaths.false) == (1, [])
    assert len(judged(*fault("refuse", 60.0, 65.0)).false) == 1


@pytest.mark.parametrize("kind", ["cut", "stop"])
def test_a_lost_connection_and_a_short_stop_are_no_excuse(kind: str) -> None:
    """The worker's parent is there to say that it lives."""
    assert len(judged(*fault(kind, 95.0, 105.0, pids=[7])).false) == 1


def test_a_worker_that_comes_back_was_declared_dead_even_if_no_log_says_so() -> None:
    missed = [{**WORKER, "event": "unlisted", "at": 50.0}, {**WORKER, "event": "listed again", "at": 51.0}]
    deaths = judge_deaths([BEGIN, WORKER, *missed], [])
    assert deaths.false == ["w (host-0) 50.0 s after the begin"]
    # And it is one death, where the log says so as well.
    assert len(judge_deaths([BEGIN, WORKER, *missed], [Declared("w", 49.5)]).false) == 1


def test_a_death_that_two_leaders_declare_is_one() -> None:
    assert len(judge_deaths([BEGIN, WORKER], [Declared("w", 100.0), Declared("w", 100.3)]).false) == 1
    assert len(judge_deaths([BEGIN, WORKER], [Declared("w", 100.0), Declared("w", 109.0)]).false) == 2


def test_deaths_that_no_log_names_show_in_the_pool_s_own_total() -> None:
    totals = {"event": "totals", "workers_lost": 3, "at": 200.0}
    assert judge_deaths([BEGIN, WORKER, gone(98.0), totals], [Declared("w", 100.0)]).unlogged == 2


def test_what_happens_as_the_campaign_ends_its_processes_does_not_count() -> None:
    end = {"event": "end", "at": 90.0}
    assert judged(end) == Deaths()


def test_the_log_of_a_reconciler_is_read(tmp_path: Path) -> None:
    lines: list[Entry] = [
        {"event": "worker vm-1-ab is declared dead: its lifeline is gone", "timestamp": "2026-01-01T00:00:00Z"},
        {"event": "worker vm-1-ab is dead: 3 of its rollouts go on elsewhere", "timestamp": "2026-01-01T00:00:01Z"},
        {"event": "reconciled", "timestamp": "2026-01-01T00:00:02Z"},
        {"event": "worker vm-2-cd is dead: 0 of its rollouts go on elsewhere", "timestamp": "2026-01-01T00:00:03Z"},
    ]
    log = tmp_path / "api-0.log"
    log.write_bytes(b"failpoint api.commit_before_answer\n" + b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert declarations([log]) == [
        Declared("vm-1-ab", 1767225601.0, "its lifeline is gone"),
        Declared("vm-2-cd", 1767225603.0),
    ]
