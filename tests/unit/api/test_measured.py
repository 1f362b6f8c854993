"""Sums in Redis become histograms and counters that Prometheus understands; what cannot be read is left out."""

from typing import Any

from prometheus_client.metrics_core import Metric

from rolloutpool_api.measured import measured_families
from rolloutpool_api.metrics import encode
from rolloutpool_common.store.measures import Measured, RedisFacts

Samples = dict[tuple[str, ...], float]


def samples(sums: dict[str, dict[str, int]], *standings: dict[str, Any]) -> Samples:
    """(name, values of its labels in the order of their names …) -> value."""
    found: list[Metric] = list(measured_families(Measured(sums, list(standings), RedisFacts(7, 10, 2), True)))
    # As it is scraped: the encoder refuses what Prometheus would.
    encode(found, "application/openmetrics-text; version=1.0.0")
    return {
        (
            sample.name.removeprefix("rolloutpool_"),
            *(sample.labels[name] for name in sorted(sample.labels)),
        ): sample.value
        for family in found
        for sample in family.samples
    }


def test_calls_of_an_endpoint_are_counted_by_outcome() -> None:
    sums = {
        "http://t:1": {"model_call_seconds|ok|0": 3, "model_call_seconds|ok|sum": 1_500_000},
        "other": {"model_call_seconds|5xx|2": 1},
    }
    found = samples(sums)
    assert found["model_calls_total", "http://t:1", "ok"] == 3
    assert found["model_call_seconds_sum", "http://t:1", "ok"] == 1.5
    assert found["model_calls_total", "other", "5xx"] == 1
    # An increase sees the first failure too.
    assert found["model_calls_total", "http://t:1", "5xx"] == 0
    assert ("model_call_seconds_count", "http://t:1", "5xx") not in found


def test_sums_of_other_versions_are_left_out() -> None:
    plain = samples({})
    strange = {"": {"new_metric|a|0": 1, "rollout_turns": 3, "rollout_turns|a|b|0": 1, "rollout_turns|99": 1, "": 5}}
    strange["http://t"] = {"rollout_turns|0": 1}
    assert samples(strange) == plain
