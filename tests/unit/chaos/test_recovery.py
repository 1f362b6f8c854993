"""Recoveries are measured from the death that caused them, and what the campaign held up itself is subtracted."""

from typing import Any

import pytest
from tests.chaos.manners import Manner
from tests.chaos.recovery import HOST_CUT_OFF, HOST_KILLED, SEVERAL, Ask, Recovery, asks_of, pauses_of, recoveries

Entry = dict[str, Any]


def member(pid: int, *, host: str = "host-0", isolated: bool = False) -> Entry:
    return {"event": "member", "worker": f"w{pid}", "pid": pid, "host": host, "isolated": isolated, "at": 0.0}


def gone(pid: int, at: float, host: str = "host-0") -> Entry:
    return {"event": "gone", "worker": f"w{pid}", "pid": pid, "host": host, "at": at}


def kill(what: str, at: float, *pids: int) -> Entry:
    return {"event": "fault", "kind": "kill", "what": what, "target": "host-0", "pids": list(pids), "at": at}


def found(
    *notes: Entry,
    asks: list[Ask],
    manner: Manner = Manner.STEADY,
    result: Entry | None = None,
    trainer: list[Entry] | None = None,
) -> list[Recovery]:
    campaign = [member(1), member(2, host="host-1"), *notes]
    logs = {"trainer-0": trainer or []}
    return recoveries({"u": asks}, {"u": result} if result else {}, {"u": manner}, campaign, logs)


BEFORE, AFTER = Ask(10.0, 1, 1, trainer="trainer-0"), Ask(14.0, 2, 2, trainer="trainer-0")


def test_from_a_kill_to_the_next_call() -> None:
    (one,) = found(kill("worker", 12.0, 1), gone(1, 12.1), asks=[BEFORE, AFTER])
    assert one == Recovery("worker", 2.0, 2.0, left=1)


def test_to_the_result_where_no_call_follows() -> None:
    notes = kill("worker", 12.0, 1), gone(1, 12.1)
    (one,) = found(*notes, asks=[BEFORE], result={"at": 13.0, "attempt": 2})
    assert one.seconds == 1.0


def test_a_process_that_ended_by_itself_died_too() -> None:
    (one,) = found(gone(1, 12.0), asks=[BEFORE, AFTER])
    assert (one.kind, one.seconds) == ("worker", 2.0)


def test_a_drain_is_no_death() -> None:
    drain = {"event": "fault", "kind": "drain", "target": "host-0", "pids": [1], "at": 11.0}
    assert not found(drain, gone(1, 12.0), asks=[BEFORE, AFTER])


def test_what_else_happened_is_noted() -> None:
    death = kill("worker", 12.0, 1), gone(1, 12.1)
    (one,) = found(*death, kill("trainer", 12.5) | {"target": "trainer-1"}, asks=[BEFORE, AFTER])
    assert one.undisturbed
    for other in (gone(2, 3.0, "host-1"), kill("redis", 13.0) | {"target": "redis"}):
        (one,) = found(*death, other, asks=[BEFORE, AFTER])
        assert not one.undisturbed
    # Long before, or when it had gone on.
    (one,) = found(*death, gone(3, 1.0), kill("redis", 14.5) | {"target": "redis"}, asks=[BEFORE, AFTER])
    assert one.undisturbed


def test_what_a_rollout_waits_that_lost_nobody() -> None:
    asks = {"u": [Ask(1.0, 1, 1, until=2.0), Ask(2.5, 1, 1, until=3.0), Ask(9.0, 2, 2, until=9.5), Ask(14.5, 2, 2)]}
    away: list[Entry] = [
        {"event": "ended", "name": "redis", "at": 10.0},
        {"event": "answers", "name": "redis", "at": 13.0},
    ]
    assert pauses_of(asks, away) == [0.5, 2.0]


def test_the_workers_that_are_left_are_counted() -> None:
    death = kill("worker", 12.0, 1), gone(1, 12.1)
    isolated, late = member(4, isolated=True), member(5) | {"at": 12.5}
    (one,) = found(*death, member(3), isolated, late, asks=[BEFORE, AFTER])
    assert one.left == 2
    stop = {"event": "fault", "kind": "stop for 20 s", "target": "host-0", "pids": [3], "at": 11.0}
    over = {"event": "over", "kind": "stop for 20 s", "target": "host-0", "at": 31.0}
    (one,) = found(*death, member(3), gone(2, 21.0, "host-1"), stop, over, asks=[BEFORE, AFTER])
    assert one.left == 0


@pytest.mark.parametrize("what", ["parent", "parent and children"])
def test_a_parent_s_death_is_that_of_its_host(what: str) -> None:
    (one,) = found(kill(what, 12.0, 9, 1), gone(1, 12.1), asks=[BEFORE, AFTER])
    assert one.kind == HOST_KILLED


def test_a_host_that_is_cut_off_may_still_ask() -> None:
    about = {"kind": "cut off a host", "target": "host-0"}
    cut = [{"event": "fault", **about, "pids": [1], "at": 5.0}, {"event": "over", **about, "at": 80.0}]
    (one,) = found(*cut, asks=[BEFORE, Ask(70.0, 2, 2)])
    assert (one.kind, one.seconds) == (HOST_CUT_OFF, 65.0)


def test_a_pause_of_redis_is_subtracted() -> None:
    about = {"kind": "pause redis", "target": "redis"}
    pause = [{"event": "fault", **about, "at": 12.5}, {"event": "over", **about, "at": 13.5}]
    (one,) = found(kill("worker", 12.0, 1), gone(1, 12.1), *pause, asks=[BEFORE, AFTER])
    assert (one.seconds, one.raw_seconds) == (1.0, 2.0)


def test_a_stop_counts_only_of_the_process_that_took_over() -> None:
    notes = [kill("worker", 12.0, 1), gone(1, 12.1)]
    about = {"kind": "stop for 20 s", "target": "host-1"}
    for pid, seconds in ((2, 0.5), (3, 2.0)):
        stop = [{"event": "fault", **about, "pids": [pid], "at": 12.0}, {"event": "over", **about, "at": 13.5}]
        (one,) = found(*notes, *stop, asks=[BEFORE, AFTER])
        assert one.seconds == seconds


def test_the_start_of_a_killed_trainer_is_subtracted() -> None:
    notes = [kill("worker", 12.0, 1), gone(1, 12.1)]
    for name, seconds in (("trainer-0", 0.5), ("trainer-1", 2.0)):
        ended = {"event": "ended", "name": name, "code": -9, "at": 11.5}
        (one,) = found(*notes, ended, asks=[BEFORE, AFTER], trainer=[{"event": "start", "at": 13.5}])
        assert one.seconds == seconds


def test_the_start_of_a_killed_redis_is_subtracted() -> None:
    redis = [
        {"event": "ended", "name": "redis", "code": -9, "at": 12.5},
        {"event": "answers", "name": "redis", "at": 13.0},
    ]
    (one,) = found(kill("worker", 12.0, 1), gone(1, 12.1), *redis, asks=[BEFORE, AFTER])
    assert one.seconds == 1.5


@pytest.mark.parametrize(
    ("target", "seconds"),
    [("trainer-0/steady", 0.5), ("trainer-0/slow", 2.0), ("host-1", 0.5), ("host-0", 2.0), ("api-0", 2.0)],
)
def test_a_link_that_is_held_is_subtracted_where_the_rollout_needs_it(target: str, seconds: float) -> None:
    about = {"kind": "hold", "target": target}
    hold = [{"event": "fault", **about, "at": 12.0}, {"event": "over", **about, "at": 13.5}]
    (one,) = found(kill("worker", 12.0, 1), gone(1, 12.1), *hold, asks=[BEFORE, AFTER])
    assert one.seconds == seconds


def test_attempts_that_asked_nothing_were_lost_too() -> None:
    (one,) = found(kill("worker", 12.0, 1), gone(1, 12.1), asks=[BEFORE, Ask(20.0, 3, 2)])
    assert one.kind == SEVERAL


def test_trainers_that_refuse_measure_nothing() -> None:
    assert not found(kill("worker", 12.0, 1), gone(1, 12.1), asks=[BEFORE, AFTER], manner=Manner.DEAF)


def test_suspects_have_company_where_calls_overlap_in_an_isolated_process() -> None:
    campaign = [member(1), member(5, isolated=True), kill("worker", 12.0, 1), gone(1, 12.1)]
    manners = dict.fromkeys(("a", "b", "c"), Manner.STEADY)
    asks = {
        "a": [BEFORE, Ask(14.0, 2, 5, until=17.0)],
        "b": [BEFORE, Ask(15.0, 2, 5, until=18.0)],
        "c": [BEFORE, Ask(19.0, 2, 5, until=22.0)],
    }
    kinds = [one.suspect for one in recoveries(asks, {}, manners, campaign, {})]
    assert kinds == ["with company", "with company", "alone"]


def test_calls_are_of_the_process_whose_connection_they_came_over() -> None:
    campaign = [
        {"event": "connected", "port": 40, "pid": 1, "at": 1.0},
        {"event": "connected", "port": 40, "pid": 2, "at": 5.0},
    ]
    about = {"uid": "u", "turn": 1}
    log = [
        {"event": "ask", **about, "attempt": 1, "port": 40, "at": 2.0},
        {"event": "ask", **about, "attempt": 2, "port": 40, "at": 6.0},
        {"event": "answer", **about, "attempt": 2, "at": 8.0},
    ]
    assert asks_of({"trainer-0": log}, campaign) == {
        "u": [Ask(2.0, 1, 1, trainer="trainer-0"), Ask(6.0, 2, 2, until=8.0, trainer="trainer-0")]
    }
