"""Every metric is documented, and no label says more than our own words."""

import re
from pathlib import Path

from prometheus_client.metrics_core import Metric

from rolloutpool_api.metrics import encode, families, outage
from rolloutpool_common.process.metrics import counted, histograms
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import Queue
from rolloutpool_common.store import PoolStats
from rolloutpool_common.store.measures import Measured, RedisFacts

ALERTS = Path(__file__).parents[3] / "deploy" / "monitoring" / "alerts.yml"
SUMS = {
    "": {
        **{f"{metric.name}|{'a|' * len(metric.labels)}0": 1 for metric in histograms()},
        **{"|".join([metric.name, *"a" * len(metric.labels)]): 1 for metric in counted()},
    },
    "http://t": {"model_call_seconds|ok|0": 1},
}
STANDING = {"component": "api", "version": "1", "resident_bytes": 1, "open_fds": 1, "levels": {}}


def of(**totals: int) -> list[Metric]:
    standing = PoolStats({k.replace("__", ":"): n for k, n in totals.items()}, 0, 0, 0, dict.fromkeys(Priority, 1.5))
    measured = Measured(SUMS, [STANDING], RedisFacts(1, 2, 3), True)
    return list(families(standing, dict.fromkeys(Priority, Queue(outbox=1, published=2)), [], measured))


def test_each_process_of_an_outage_says_so() -> None:
    assert encode(outage(), "")[0].splitlines()[-1] == b"rolloutpool_redis_up 0.0"


def test_totals_that_are_unknown_here_are_left_out() -> None:
    text = encode(of(new__thing=3, drift__a=2), "")[0].decode()
    assert 'rolloutpool_drifted_turns_total{label="a"} 2.0' in text
    assert "thing" not in text


def test_a_category_may_hold_a_colon_and_a_quote() -> None:
    text = encode(of(**{'failure__infra__a:"b': 1}), "")[0].decode()
    assert 'rolloutpool_rollout_failures_total{category="a:\\"b",kind="infra"} 1.0' in text


def test_an_alert_hears_of_the_first_time() -> None:
    # `increase` says nothing of a series that comes with its first event.
    there = {(one.name, value) for family in of() for one in family.samples for value in one.labels.values()}
    counted_by_label = re.findall(r"increase\((\w+)\{\w+=~?\"([^\"]+)\"\}", ALERTS.read_text())
    assert counted_by_label
    assert {(name, value) for name, values in counted_by_label for value in values.split("|")} - there == set()
