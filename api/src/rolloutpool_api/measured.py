"""The metrics that processes measure, made from the sums in Redis with the declarations of `process/metrics.py`.

Invariant: what is here is the same from each API process, as the totals are. Sums of a metric that this version does
not declare are left out, and so are fields that it cannot read: a newer worker may have written them.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from rolloutpool_common.process.build import UNKNOWN
from rolloutpool_common.process.metrics import (
    SEPARATOR,
    SUM,
    Counted,
    Histogram,
    Largest,
    Level,
    Metric,
    counted,
    histograms,
)
from rolloutpool_common.store.measures import Measured

Labels = tuple[str, ...]


def measured_families(measured: Measured) -> Iterator[Family]:
    """Makes all metrics that processes measure."""
    found = _by_metric(measured.sums)
    for histogram in histograms():
        yield from _histogram(histogram, found.get(histogram.name, {}))
    for number in counted():
        yield _counter(number, found.get(number.name, {}))
    yield from _standings(measured.standings)
    redis = measured.redis
    yield _gauge("redis_memory_bytes", "Memory that Redis uses.", redis.memory_bytes)
    yield _gauge("redis_memory_limit_bytes", "Redis' `maxmemory`; 0 where there is none.", redis.memory_limit_bytes)
    yield CounterMetricFamily(
        "rolloutpool_redis_aof_delayed_fsync",
        "Writes of Redis that waited for its disk, since its start.",
        value=redis.aof_delayed_fsyncs,
    )
    yield _gauge("reconciler_leader", "Whether an API process reconciles.", int(measured.has_leader))


def _by_metric(sums: Mapping[str, Mapping[str, int]]) -> dict[str, dict[Labels, int]]:
    """Sorts the fields by metric; a metric by endpoint gets the endpoint as its first label."""
    by_endpoint = {metric.name for metric in histograms() if metric.by_endpoint}
    found: dict[str, dict[Labels, int]] = {}
    for endpoint, fields in sums.items():
        for field, n in fields.items():
            name, *parts = field.split(SEPARATOR)
            if (name in by_endpoint) is bool(endpoint):
                found.setdefault(name, {})[*((endpoint,) if endpoint else ()), *parts] = n
    return found


def _histogram(metric: Histogram, sums: Mapping[Labels, int]) -> Iterator[Family]:
    names = _names(metric)
    cells: dict[Labels, list[float]] = {labels: _cell(metric) for labels in metric.known}
    for parts, n in sums.items():
        if len(parts) != len(names) + 1:
            continue
        *labels, part = parts
        cell = cells.setdefault(tuple(labels), _cell(metric))
        if part == SUM:
            cell[-1] = n / metric.scale
        elif part.isdecimal() and int(part) <= len(metric.bounds):
            cell[int(part)] = n
    family = HistogramMetricFamily(f"rolloutpool_{metric.name}", metric.text, labels=names)
    bounds = [*(f"{bound:g}" for bound in metric.bounds), "+Inf"]
    for labels_of, (*counts, total) in sorted(cells.items()):
        family.add_metric(labels_of, list(zip(bounds, accumulate(counts), strict=True)), total)
    yield family
    if metric.calls is not None:
        name, text, outcomes = metric.calls
        calls = CounterMetricFamily(f"rolloutpool_{name}", text, labels=names)
        numbers = {(*called, outcome): 0.0 for *called, _ in cells for outcome in outcomes}
        numbers |= {labels_of: sum(counts) for labels_of, (*counts, _) in cells.items()}
        for labels_of, number in sorted(numbers.items()):
            calls.add_metric(labels_of, number)
        yield calls


def _cell(metric: Histogram) -> list[float]:
    """A count for each bucket, and the sum."""
    return [0.0] * (len(metric.bounds) + 2)


def _counter(metric: Counted, sums: Mapping[Labels, int]) -> Family:
    names = _names(metric)
    family = CounterMetricFamily(f"rolloutpool_{metric.name}", metric.text, labels=names)
    values = {
        **dict.fromkeys(metric.known, 0),
        **{labels: n for labels, n in sums.items() if len(labels) == len(names)},
    }
    for labels, n in sorted(values.items()):
        family.add_metric(labels, n / metric.scale)
    return family


def _names(metric: Metric) -> Labels:
    return (*(("endpoint",) if metric.by_endpoint else ()), *metric.labels)


def _standings(standings: Iterable[Mapping[str, Any]]) -> Iterator[Family]:
    """Makes the gauges of processes: their sum, and the largest where one process alone can be in trouble."""
    processes = GaugeMetricFamily("rolloutpool_processes", "Processes that report.", labels=("component",))
    memory = GaugeMetricFamily(
        "rolloutpool_process_resident_memory_bytes", "Memory of all of them.", labels=("component",)
    )
    largest = GaugeMetricFamily(
        "rolloutpool_process_resident_memory_max_bytes", "Memory of the largest of them.", labels=("component",)
    )
    files = GaugeMetricFamily(
        "rolloutpool_process_open_fds_max", "Open files of the one that has most.", labels=("component",)
    )
    builds = GaugeMetricFamily(
        "rolloutpool_build_info", "1 for each build that runs.", labels=("component", "version", "commit")
    )
    phases = GaugeMetricFamily(
        "rolloutpool_turns_in_flight",
        "Rollouts in a model call, in tools, in a grader, or in the pause before a call is repeated.",
        labels=("phase",),
    )
    of: dict[str, list[Mapping[str, Any]]] = {}
    for standing in standings:
        of.setdefault(standing["component"], []).append(standing)
    for component, all_of_them in sorted(of.items()):
        resident = [standing["resident_bytes"] for standing in all_of_them]
        processes.add_metric([component], len(all_of_them))
        memory.add_metric([component], sum(resident))
        largest.add_metric([component], max(resident))
        files.add_metric([component], max(standing["open_fds"] for standing in all_of_them))
        # Processes of older versions do not say their commit.
        for build in sorted({(standing["version"], standing.get("commit", UNKNOWN)) for standing in all_of_them}):
            builds.add_metric([component, *build], 1)

    def level(name: str) -> int:
        return sum(standing["levels"].get(name, 0) for some in of.values() for standing in some)

    for phase, declared in Level.all.items():
        if declared.is_phase:
            phases.add_metric([phase], level(phase))
    yield from (processes, memory, largest, files, builds, phases)
    for reported, value in Largest.all.items():
        found = (standing.get("largest", {}).get(reported, 0) for some in of.values() for standing in some)
        yield _gauge(value.name, value.text, max(found, default=0))
    yield _gauge("environment_sessions", "Sessions of environments that are open.", level("sessions"))
    yield _gauge("long_polls", "Requests that wait for rollouts, event streams among them.", level("long_polls"))
    yield _gauge("event_streams", "Event streams that are open.", level("event_streams"))


def _gauge(name: str, text: str, value: float) -> Family:
    return GaugeMetricFamily(f"rolloutpool_{name}", text, value=value)
