"""Metrics are emptied into rows of whole numbers, whatever was observed and from how many threads."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from rolloutpool_common.process.metrics import MOST_CELLS, OTHER, SEPARATOR, Buckets, Counted, Histogram, Level, Metric


@pytest.fixture(autouse=True)
def undeclared() -> Iterator[None]:
    """Metrics of a test are no metrics of the pool."""
    before = list(Metric.all)
    yield
    Metric.all[:] = before


@pytest.fixture
def seconds() -> Histogram:
    return Histogram("seconds", "A test's.", "outcome", buckets=Buckets((0.1, 1)), by_endpoint=True)


def test_a_value_is_in_the_first_bucket_that_holds_it(seconds: Histogram) -> None:
    for value in (0.0, 0.1, 0.10001, 1, 1.5):
        seconds.observe(value, "ok", endpoint="http://t")
    assert list(seconds.rows()) == [
        ("http://t", "seconds|ok|0", 2),
        ("http://t", "seconds|ok|1", 2),
        ("http://t", "seconds|ok|2", 1),
        ("http://t", "seconds|ok|sum", 2_700_010),
    ]
    assert list(seconds.rows()) == []


def test_a_label_cannot_forge_a_field(seconds: Histogram) -> None:
    seconds.observe(5, f"a{SEPARATOR}sum\n{'x' * 500}", endpoint="e")
    seconds.observe(5, "", endpoint="e")
    fields = [field for _, field, _ in seconds.rows()]
    assert {field.count(SEPARATOR) for field in fields} == {2}
    assert all(field.isprintable() and len(field) < 120 for field in fields)
    assert "seconds|?|2" in fields


def test_ten_thousand_endpoints_take_no_more_memory_than_the_limit(seconds: Histogram) -> None:
    for number in range(10_000):
        seconds.observe(0.5, "ok", endpoint=f"http://{number}")
    counts = Counter({endpoint: n for endpoint, field, n in seconds.rows() if field.endswith("|1")})
    assert len(counts) == MOST_CELLS + 1
    assert counts[OTHER] == 10_000 - MOST_CELLS


def test_a_number_is_sent_whole(seconds: Histogram) -> None:
    spent = Counted("spent", "A test's.", "phase", scale=1_000_000)
    for _ in range(3):
        spent.add(0.1, "model")
    spent.add(0, "tool")
    assert list(spent.rows()) == [("", "spent|model", 300_000)]


def test_no_value_is_lost_between_threads(seconds: Histogram) -> None:
    taken: Counter[str] = Counter()
    done = threading.Event()

    def observe() -> None:
        for _ in range(20_000):
            seconds.observe(0.5, "ok", endpoint="e")

    def take() -> None:
        while not done.is_set():
            taken.update({field: n for _, field, n in seconds.rows()})

    threads = [threading.Thread(target=observe) for _ in range(2)]
    taker = threading.Thread(target=take)
    for thread in (taker, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    taker.join()
    taken.update({field: n for _, field, n in seconds.rows()})
    assert taken["seconds|ok|1"] == 40_000
    assert taken["seconds|ok|sum"] == 40_000 * 500_000


def test_a_level_is_how_many_are_inside() -> None:
    level = Level("tried")
    assert Level.all.pop("tried") is level

    def fail_inside() -> None:
        with level:
            assert level.now == 2
            raise KeyError

    with level, pytest.raises(KeyError):
        fail_inside()
    assert level.now == 0


def test_names_and_labels_are_those_that_prometheus_takes() -> None:
    names = [metric.name for metric in Metric.all]
    assert len(names) == len(set(names))
    for metric in Metric.all:
        assert metric.name.isidentifier()
        assert {"le", "endpoint"}.isdisjoint(metric.labels)
        assert all(len(known) == len(metric.labels) for known in metric.known)
