"""The time that templates print."""

from datetime import datetime
from threading import Thread

from rolloutpool_common.rendering.render_clock import one_time, strftime_now

EXACT = "%Y-%m-%dT%H:%M:%S.%f"


def test_it_is_the_local_time_without_a_zone() -> None:
    before = datetime.now().isoformat()  # noqa: DTZ005
    assert before <= strftime_now(EXACT) <= datetime.now().isoformat()  # noqa: DTZ005
    assert strftime_now("%Z%z") == ""


def test_it_stands_still_inside_and_goes_on_behind() -> None:
    with one_time():
        held = strftime_now(EXACT)
        with one_time():
            assert strftime_now(EXACT) == held
        assert strftime_now(EXACT) == held
    assert strftime_now(EXACT) > held


def test_each_thread_has_its_own() -> None:
    times: list[str] = []
    with one_time():
        held = strftime_now(EXACT)
        other = Thread(target=lambda: times.append(strftime_now(EXACT)))
        other.start()
        other.join()
    assert times > [held]
