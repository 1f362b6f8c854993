"""The pool's metrics for Prometheus, read from Redis at each scrape.

Invariant: totals are the store's, so they survive every restart and are the same from each API process; scrape one, or
take the `max` over them, never the sum. What processes measure is added up in the store too (`measured.py`). What has
a fixed set of labels is there from the first scrape on, with 0, so that a rate sees the first event too. Labels are our
own words, the names that operators have given to tools and keys, and hosts and ports of trainers: no id, no text of a
policy.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rolloutpool_api.measured import measured_families
from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.batch import CancelCause, Priority
from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.protocol.workers import Queue, Worker, WorkerRole
from rolloutpool_common.security.api_keys import GUEST
from rolloutpool_common.store import PoolStats, RefusalCause
from rolloutpool_common.store.measures import Measured

_PLAIN = {
    "batches": ("batches_accepted", "Batches that were accepted."),
    "accepted": ("rollouts_accepted", "Rollouts that were accepted."),
    "turns": ("turns", "Model calls of ended rollouts."),
    "sampled": ("sampled_tokens", "Tokens with mask 1 in the samples of ended rollouts."),
    "tokens": ("tokens", "All tokens in the samples of ended rollouts, prompts included."),
    "republished": ("tickets_republished", "Tickets that were lost between outbox and worker and were made again."),
    "strays": ("strays", "Accepted rollouts that were in no queue and with no worker, and were put back."),
    "doubts": ("delta_doubts", "Shapes of deltas whose short cut gave other ids than the rule, and is no longer used."),
    "workers_lost": ("workers_lost", "Worker processes that were declared dead."),
    **{total.field: (total.name, total.text) for capability in CAPABILITIES for total in capability.totals},
}
"""Field of the totals -> (name, help)."""

_LABELLED: dict[str, tuple[str, str, tuple[str, ...], Iterable[str]]] = {
    "status": (
        "rollouts_ended",
        "Rollouts that ended, by final status.",
        ("status",),
        [status.value for status in RolloutStatus if status.terminal],
    ),
    "failure": (
        "rollout_failures",
        "Failed rollouts, by kind and category.",
        ("kind", "category"),
        [f"{kind}:{category}" for kind in FailureKind for category in Category],
    ),
    "alignment": (
        "rollout_alignments",
        "Ended rollouts with sampled tokens, by how well these are proved.",
        ("alignment",),
        [alignment.value for alignment in Alignment],
    ),
    "drift": ("drifted_turns", "Turns whose prompt differed from the ledger, by label.", ("label",), ()),
    "warning": (
        "rollout_warnings",
        "Ended rollouts with a warning, by warning.",
        ("warning",),
        ["stop_token_withheld", "zero_logprobs"],
    ),
    "requeued": (
        "rollouts_requeued",
        "Rollouts that went back to the queue, by what was counted.",
        ("reason",),
        [
            "crashes",
            "deaths",
            "drains",
            "losses",
            "deferrals",
            "capacity",
            "grade_retries",
            "pauses",
            "retries",
            "stale",
            "weights",
        ],
    ),
    "cancelled_for": (
        "batches_cancelled",
        "Batches that were cancelled as a whole: by their caller, because nobody read them, or because nobody resumed "
        "their run.",
        ("cause",),
        list(CancelCause),
    ),
    "group": (
        "groups",
        "Groups that got their verdict: enough of their rollouts completed, or not enough can.",
        ("verdict",),
        ["dropped", "usable"],
    ),
    "refused": (
        "submits_refused",
        "Submits without a fault that were refused, by cause and by the name of the key.",
        ("cause", "key"),
        (),
    ),
    **{
        counter.prefix: (counter.name, counter.text, (counter.label,), counter.always)
        for capability in CAPABILITIES
        for counter in capability.counters
    },
}
"""Prefix of the totals' fields -> (name, help, labels, values that are always there)."""


class _Once(Collector):
    """Gives a registry the metrics that were read already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def encode(found: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Writes metrics in the format that an Accept header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(list(found)))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def outage() -> Iterator[Metric]:
    """Makes the one metric that is known while Redis does not answer."""
    yield _gauge("redis_up", "Whether Redis answered.", 0)


def families(
    standing: PoolStats,
    depths: Mapping[Priority, Queue],
    workers: Iterable[Worker],
    measured: Measured,
    owners: Iterable[str] = (GUEST,),
) -> Iterator[Metric]:
    """Makes all metrics of a pool."""
    yield _gauge("redis_up", "Whether Redis answered.", 1)
    yield from _totals(standing.totals, owners)
    yield _gauge("rollouts_open", "Rollouts that are accepted and have not ended.", standing.open)
    queued = GaugeMetricFamily(
        "rolloutpool_rollouts_queued",
        "Rollouts that no worker has: in the outbox, or published to the broker.",
        labels=("priority", "place"),
    )
    oldest = GaugeMetricFamily(
        "rolloutpool_oldest_ticket_seconds",
        "How long the oldest published ticket has waited for a worker.",
        labels=("priority",),
    )
    for priority, depth in depths.items():
        queued.add_metric([priority, "outbox"], depth.outbox)
        queued.add_metric([priority, "published"], depth.published)
        oldest.add_metric([priority], standing.oldest_ticket_s[priority])
    yield queued
    yield oldest
    yield _gauge("rollouts_delayed", "Rollouts that wait before they may run again.", standing.delayed)
    live = [worker for worker in workers if worker.alive]
    yield _gauge("workers", "Worker processes that beat.", len(live))
    yield _gauge("slots", "Rollouts that they can run at once.", sum(worker.slots for worker in live))
    yield _gauge("rollouts_running", "Rollouts that they run.", sum(worker.running for worker in live))
    shared = [worker.running for worker in live if worker.role is WorkerRole.SHARED and not worker.draining]
    yield _gauge("worker_slots_used_max", "Rollouts of the fullest worker that takes work.", max(shared, default=0))
    yield _gauge("worker_slots_used_min", "Rollouts of the emptiest worker that takes work.", min(shared, default=0))
    for capability in CAPABILITIES:
        for gauge in capability.gauges:
            yield _gauge(gauge.name, gauge.text, standing.gauges.get(gauge.name, 0))
    yield _gauge("dead_letters", "Rollouts that killed their workers and wait for a person.", standing.dead_letters)
    yield from measured_families(measured)


def _totals(totals: Mapping[str, int], owners: Iterable[str]) -> Iterator[Metric]:
    """Makes the counters: of what the pool has counted since it is there."""
    for field, (name, text) in _PLAIN.items():
        yield CounterMetricFamily(f"rolloutpool_{name}", text, value=totals.get(field, 0))
    always_of = {"refused": [f"{cause}:{owner}" for cause in RefusalCause for owner in owners]}
    for prefix, (name, text, labels, always) in _LABELLED.items():
        found = {field.removeprefix(f"{prefix}:"): n for field, n in totals.items() if field.startswith(f"{prefix}:")}
        family = CounterMetricFamily(f"rolloutpool_{name}", text, labels=labels)
        # What was counted wins over the zeros of the values that are always there.
        for value, n in sorted({**dict.fromkeys([*always, *always_of.get(prefix, ())], 0), **found}.items()):
            # Split once per label but the last, which may have colons of its own.
            family.add_metric(value.split(":", len(labels) - 1), n)
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rolloutpool_{name}", text, value=value)
