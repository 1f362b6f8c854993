"""Verdicts follow from looks and a clock alone: each row is a history of looks and who is dead by the end of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rolloutpool_common.store.verdicts import DeathCause, Sighting, Verdicts

PERIOD = 0.25


class Watch:
    """Looks each 250 ms of a clock that the test moves."""

    def __init__(self, **options: float) -> None:
        self.now = 1000.0
        self.verdicts = Verdicts(clock=lambda: self.now, **options)
        self.deaths: dict[str, tuple[Any, DeathCause, bool]] = {}
        """Worker -> seconds at which it was first condemned, why, and whether with its host."""

    def look(self, workers: dict[str, Sighting], took_s: float = 0.0) -> None:
        """One look at the workers that are not condemned yet."""
        listed = {w: seen for w, seen in workers.items() if w not in self.deaths}
        for verdict in self.verdicts.judge(listed, took_s=took_s):
            assert verdict.beat == workers[verdict.worker_id].beat
            self.deaths[verdict.worker_id] = (self.now - 1000, verdict.cause, verdict.host_lost)

    def run(self, seconds: float, see: Callable[[float], dict[str, Sighting]]) -> None:
        """Looks for so long; `see` says what is seen at each second since the beginning."""
        end = self.now + seconds
        while self.now < end:
            self.look(see(self.now - 1000))
            self.now += PERIOD

    def died(self) -> dict[str, Any]:
        return {worker: at for worker, (at, _, _) in self.deaths.items()}


def living(now: float, **changes: object) -> Sighting:
    """It is subscribed and beats twice a second."""
    return replace(Sighting(b"%d" % int(now * 2), subscribed=True), **changes)  # type: ignore[arg-type]


def gone(at: float, **changes: object) -> Sighting:
    """It ended at that second."""
    return living(at, subscribed=False, **changes)


def pool(now: float, names: str = "abcd", **others: Sighting) -> dict[str, Sighting]:
    """Living workers, and others."""
    return {name: living(now) for name in names} | others


def settled(**options: float) -> Watch:
    """A watch that has looked for three seconds, so that the first looks' silence is over."""
    watch = Watch(**options)
    watch.run(3, pool)
    return watch


def test_a_new_watch_needs_as_long_as_any_other() -> None:
    watch = Watch()
    watch.run(5, lambda now: pool(now, "ab", c=gone(0)))
    assert watch.died() == {"c": pytest.approx(1.5)}


def test_a_killed_worker_is_absent_after_a_second_and_a_half() -> None:
    watch = settled()
    watch.run(5, lambda now: pool(now, "abc", d=gone(3)))
    assert watch.deaths == {"d": (pytest.approx(4.5), DeathCause.ABSENT, False)}


@pytest.mark.parametrize("seconds", [1.25, 10.0, 55.0])
def test_a_stalled_worker_keeps_its_life(seconds: float) -> None:
    watch = settled()
    watch.run(seconds, lambda now: {name: living(3) for name in "abcd"})
    watch.run(5, pool)
    assert watch.died() == {}


def test_a_worker_that_stalls_for_too_long_is_taken_over() -> None:
    watch = settled(stalled_s=20)
    watch.run(30, lambda now: pool(now, "abc", d=living(3)))
    assert watch.deaths == {"d": (pytest.approx(23, abs=0.3), DeathCause.STALLED, False)}
    assert not DeathCause.STALLED.lifeline_saves


def test_a_worker_that_beats_needs_no_lifeline() -> None:
    watch = settled()
    watch.run(20, lambda now: {name: living(now, subscribed=False) for name in "abcd"})
    assert watch.died() == {}


def test_a_lifeline_that_comes_back_in_time_saves() -> None:
    watch = settled()
    for _ in range(5):
        watch.run(1.25, lambda now: pool(now, "abc", d=gone(3)))
        watch.run(0.25, lambda now: pool(now, "abc", d=living(3)))
    assert watch.died() == {}


@pytest.mark.parametrize(("cut", "died"), [(3.0, {}), (9.5, {}), (12.0, {"a", "b", "c", "d"})])
def test_losses_in_numbers_have_ten_seconds(cut: float, died: set[str]) -> None:
    """A cut network, and workers that are paused besides, so that no beat arrives either."""
    watch = settled()
    watch.run(cut, lambda now: {name: gone(3) for name in "abcd"})
    assert set(watch.died()) == set(died)


def test_the_slowest_of_many_that_come_back_is_spared() -> None:
    watch = settled()
    watch.run(3, lambda now: {name: gone(3) for name in "abcd"})
    watch.run(3, lambda now: pool(now, "abc", d=gone(3)))
    watch.run(3, pool)
    assert watch.died() == {}


def test_two_losses_that_are_not_together_are_two_deaths() -> None:
    watch = settled()
    watch.run(1.25, lambda now: pool(now, "abc", d=gone(3)))
    watch.run(5, lambda now: pool(now, "ab", c=gone(4), d=gone(3)))
    assert watch.died() == {"d": pytest.approx(4.5), "c": pytest.approx(5.75, abs=0.3)}


def test_both_of_two_are_no_numbers() -> None:
    watch = Watch()
    watch.run(3, lambda now: pool(now, "ab"))
    watch.run(3, lambda now: {"a": gone(3), "b": gone(3)})
    assert watch.died() == {"a": pytest.approx(4.5), "b": pytest.approx(4.5)}


def test_a_supervisor_would_have_reported_the_end() -> None:
    """So a worker without a lifeline that has one was stopped, say, while Redis was started again."""
    watch = settled(stalled_s=40)
    watch.run(38, lambda now: pool(now, "abc", d=gone(3, supervisor="s", supervised=True)))
    assert watch.died() == {}
    watch.run(5, lambda now: pool(now, "abc", d=gone(3, supervisor="s", supervised=True)))
    assert watch.deaths == {"d": (pytest.approx(43, abs=0.3), DeathCause.STALLED, False)}


def test_a_lifeline_that_ended_with_its_redis_proves_nothing() -> None:
    watch = settled(stalled_s=40)
    watch.run(38, lambda now: pool(now, "abc", d=gone(3, restarted=True)))
    assert watch.died() == {}
    watch.run(1, pool)
    watch.run(5, lambda now: pool(now, "abc", d=gone(42)))
    assert watch.deaths == {"d": (pytest.approx(43.5, abs=0.3), DeathCause.ABSENT, False)}


def test_a_worker_that_did_not_come_back_to_a_new_redis_is_given_up() -> None:
    watch = settled(stalled_s=40)
    watch.run(42, lambda now: pool(now, "abc", d=gone(3, restarted=True), e=gone(3, supervisor="s", restarted=True)))
    assert watch.deaths == {
        "d": (pytest.approx(43, abs=0.3), DeathCause.STALLED, False),
        # Its supervisor did not come back either: its host may be cut off from the new Redis, and its workers live.
        "e": (pytest.approx(43, abs=0.3), DeathCause.STALLED, False),
    }


def test_a_worker_whose_supervisor_is_gone_too_has_ten_seconds() -> None:
    watch = settled()
    watch.run(12, lambda now: pool(now, "abc", d=gone(3, supervisor="s")))
    assert watch.deaths == {"d": (pytest.approx(13, abs=0.3), DeathCause.ABSENT, False)}


def test_a_lost_host_is_no_rollout_s_fault() -> None:
    watch = settled()
    lost = gone(3, supervisor="s", host="node")
    alone = gone(3, supervisor="t", host="other")
    watch.run(14, lambda now: pool(now, "abcd", e=lost, f=lost, g=alone))
    assert {worker: host_lost for worker, (_, _, host_lost) in watch.deaths.items()} == {
        "e": True,
        "f": True,
        "g": False,
    }
    assert all(at == pytest.approx(13, abs=0.3) for at in watch.died().values())


def test_a_worker_whose_lifeline_cannot_be_seen_has_thirty_seconds() -> None:
    watch = settled()
    watch.run(35, lambda now: pool(now, "abc", d=gone(3, lifeline=False)))
    assert watch.deaths == {"d": (pytest.approx(33, abs=0.3), DeathCause.SILENT, False)}


def test_after_a_gap_nobody_is_dead_for_two_seconds() -> None:
    watch = settled()
    watch.run(1.25, lambda now: pool(now, "abc", d=gone(3)))
    # Redis did not answer.
    watch.now += 1.1
    began = watch.now - 1000
    watch.look(pool(began, "abc", d=gone(3)), took_s=1.1)
    watch.now += PERIOD
    watch.run(5, lambda now: pool(now, "abc", d=gone(3)))
    assert watch.died() == {"d": pytest.approx(began + 2.0)}


def test_slow_answers_alone_prove_nothing() -> None:
    """Answers that take 1.5 s each prove nothing, however many they are."""
    watch = settled()
    for _ in range(20):
        watch.now += 1.5
        watch.look(pool(watch.now - 1000, "abc", d=gone(3)), took_s=1.5)
    assert watch.died() == {}


def test_who_comes_late_again_and_again_still_finds_the_dead() -> None:
    """A reconciler on a starved machine looks each 4 s, and Redis answers at once."""
    watch = settled()
    for _ in range(20):
        watch.now += 4
        watch.look(pool(watch.now - 1000, "abc", d=gone(3)))
    # Seen missing at 7 s; each pause of 4 s counts half a second of the 1.5.
    assert watch.died() == {"d": pytest.approx(3 + 4 + 3 * 4, abs=0.3)}


def test_a_pause_of_this_process_is_no_evidence() -> None:
    """All machines were paused for a minute: nobody's lifeline broke, and no beat came."""
    watch = settled()
    watch.now += 59
    before = {name: living(3) for name in "abcd"}
    watch.look(before)
    watch.now += PERIOD
    watch.run(3, pool)
    # One that had just been seen missing when everything stopped gets its time as well.
    watch.run(1.25, lambda now: pool(now, "abc", d=gone(now)))
    watch.now += 60
    watch.look(pool(watch.now - 1000, "abc", d=gone(66)))
    watch.now += PERIOD
    watch.run(1, pool)
    assert watch.died() == {}


@pytest.mark.parametrize(("loss", "seconds"), [({}, 1.5), ({"supervisor": "s"}, 10.0)])
def test_the_dead_are_found_although_something_fails_each_four_seconds(loss: dict[str, Any], seconds: float) -> None:
    """Their silence adds up; the gaps count nothing, and 2 s of looks in a row are enough for the verdict."""
    watch = settled()
    for _ in range(10):
        watch.run(2.75, lambda now: pool(now, "abc", d=gone(3, **loss)))
        watch.now += 1.0
        watch.look(pool(watch.now - 1000, "abc", d=gone(3, **loss)), took_s=1.25)
        watch.now += PERIOD
    # Of each four seconds, 2.75 count.
    assert watch.died() == {"d": pytest.approx(3 + seconds * 4 / 2.75, abs=1.3)}


def test_a_lifeline_that_breaks_in_a_gap_has_its_whole_time() -> None:
    """Redis is away for 5 s, each time after three good seconds, and then takes 1.75 s to be connected to."""
    watch = settled()
    for _ in range(10):
        watch.run(3, pool)
        back = watch.now - 1000 + 5
        watch.now += 5
        watch.look(pool(back, "ab", c=gone(back), d=gone(back)), took_s=5.0)
        watch.now += PERIOD
        watch.run(1.5, lambda now, back=back: pool(now, "ab", c=gone(back), d=gone(back)))  # type: ignore[misc]
    assert watch.died() == {}


def test_a_look_that_was_put_off_is_not_late() -> None:
    watch = settled()
    for now in (4.5, 6.0, 7.5):
        watch.now = 1000 + now
        # Looks a second and a half apart, half a second late where there is nothing amiss.
        seen = pool(now, d=living(2, subscribed=True))
        assert not watch.verdicts.judge(seen, put_off_s=0.75)
    # Nothing of that time was left out: the beat is as old as it is.
    assert watch.verdicts._watched["d"].since == 1004.5


def test_a_look_that_failed_is_a_gap() -> None:
    watch = settled()
    watch.run(1.25, lambda now: pool(now, "abc", d=gone(3)))
    watch.now += 30
    watch.verdicts.interrupt()
    began = watch.now - 1000
    watch.run(5, lambda now: pool(now, "abc", d=gone(3)))
    assert watch.died() == {"d": pytest.approx(began + 2.0)}


def test_a_start_of_redis_gives_everybody_ten_seconds() -> None:
    watch = settled()
    watch.verdicts.interrupt(10)
    watch.run(12, lambda now: pool(now, "abc", d=gone(3)) if now > 6 else {n: gone(3) for n in "abcd"})
    assert watch.died() == {"d": pytest.approx(13)}


def test_one_that_left_is_forgotten() -> None:
    watch = settled()
    watch.run(1.25, lambda now: pool(now, "abc", d=gone(3)))
    watch.run(1, lambda now: pool(now, "abc"))
    # The same id again, as no worker does.
    watch.run(1.25, lambda now: pool(now, "abc", d=gone(3)))
    assert watch.died() == {}


def test_beats_of_a_process_that_does_not_get_on_do_not_save_it() -> None:
    watch = settled()
    # Its thread beats twice a second, and says each time that nothing else in the process has moved since second 3.
    watch.run(70, lambda t: pool(t, w=living(t, idle_s=t - 3, mark=b"5:1")))
    assert watch.died() == {"w": pytest.approx(63, abs=PERIOD)}


def test_who_finishes_rollouts_lives_without_a_beat() -> None:
    """Seen with 229 rollouts in flight: they ended all the time, and the beats had stopped."""
    watch = settled()
    silent = Sighting(b"7", subscribed=True)
    watch.run(200, lambda t: pool(t, w=replace(silent, mark=b"229:%d" % int(t / 20))))
    assert watch.died() == {}
    # It gets on no more: its time begins with the last sign.
    watch.run(70, lambda t: pool(t, w=replace(silent, mark=b"229:9")))
    assert set(watch.died()) == {"w"}


def test_an_older_version_says_neither_and_is_judged_by_its_beats() -> None:
    watch = settled()
    watch.run(70, lambda t: pool(t, w=Sighting(b"7", subscribed=True)))
    assert watch.died() == {"w": pytest.approx(63, abs=PERIOD)}


def test_a_gap_counts_for_nobody_who_was_silent_before_it() -> None:
    watch = settled()
    silent = Sighting(b"1", subscribed=True)
    watch.run(50, lambda now: pool(now, z=silent))
    watch.verdicts.interrupt()
    watch.now += 30
    watch.run(5, lambda now: pool(now, z=silent))
    assert watch.deaths == {}
    # It was silent for 50 s before and 5 s behind it.
    watch.run(6, lambda now: pool(now, z=silent))
    assert watch.deaths["z"][1] is DeathCause.STALLED
