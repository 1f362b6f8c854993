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


def standing(component: str, **fields: Any) -> dict[str, Any]:
    levels = {"model": 2, "tool": 1, "pause": 0, "long_polls": 3, "event_streams": 1}
    return {
        "component": component,
        "version": "1",
        "resident_bytes": 100,
        "open_fds": 7,
        "levels": levels,
        **fields,
    }


def test_buckets_are_cumulative_and_end_with_the_count() -> None:
    found = samples({"": {f"rollout_queue_seconds|high|{part}": n for part, n in (("0", 2), ("3", 1), ("14", 4))}})
    series = {key[1]: n for key, n in found.items() if key[0] == "rollout_queue_seconds_bucket" and key[-1] == "high"}
    assert (series["0.01"], series["0.1"], series["0.5"], series["3600"], series["+Inf"]) == (2, 2, 3, 3, 7)
    assert found["rollout_queue_seconds_count", "high"] == 7
    assert found["rollout_queue_seconds_count", "low"] == 0


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


def test_processes_are_added_up_and_the_largest_is_shown() -> None:
    found = samples(
        {},
        standing("worker"),
        standing("worker", resident_bytes=300, open_fds=9, version="2", commit="a"),
        standing("api"),
    )
    assert found["processes", "worker"] == 2
    assert found["process_resident_memory_bytes", "worker"] == 400
    assert found["process_resident_memory_max_bytes", "worker"] == 300
    assert found["process_open_fds_max", "worker"] == 9
    assert [key[1:] for key in found if key[0] == "build_info"] == [
        ("unknown", "api", "1"),
        ("unknown", "worker", "1"),
        ("a", "worker", "2"),
    ]
    assert found["turns_in_flight", "model"] == 6
    assert found["long_polls",] == 9


def test_redis_says_how_full_it_is() -> None:
    found = samples({})
    facts = ("redis_memory_bytes", "redis_memory_limit_bytes", "redis_aof_delayed_fsync_total", "reconciler_leader")
    assert [found[name,] for name in facts] == [7, 10, 2, 1]
