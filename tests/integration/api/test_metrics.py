"""What Prometheus scrapes: totals that outlive processes, and the state of the moment."""

from importlib.metadata import version

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.api_requests import batch
from tests.support.batches import beat
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.process.build import commit
from rolloutpool_common.process.metrics import Level, take_rows
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_common.store import Store

Series = dict[tuple[str, ...], float]
MEASURED = (
    "process",
    "build_info",
    "gc_",
    "http_",
    "redis_",
    "event_loop_",
    "reconcile",
    "model_call",
    "tool_call",
    "grader_call",
    "environment_call",
)
"""How the metrics begin that an idle pool has too."""
FAILURE = Failure(
    kind=FailureKind.POLICY,
    boundary=Boundary.TEMPLATE,
    category=Category.TEMPLATE_REFUSED,
    message="no",
    retryable=False,
)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what other tests have measured in this process, before an API starts that reports it."""
    take_rows()
    for level in Level.all.values():
        monkeypatch.setattr(level, "now", 0)


async def scrape(client: httpx.AsyncClient, **headers: str) -> Series:
    """(name, values of its labels in the order of their names …) -> value."""
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (
            sample.name.removeprefix("rolloutpool_"),
            *(sample.labels[name] for name in sorted(sample.labels)),
        ): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_an_idle_pool_has_every_series_at_zero(client: httpx.AsyncClient) -> None:
    series = await scrape(client)
    assert series.pop(("redis_up",)) == 1
    measured = {name: n for name, n in series.items() if name[0].startswith(MEASURED)}
    series = {name: n for name, n in series.items() if name not in measured}
    assert {name: n for name, n in series.items() if n} == {}
    # The process that answers has measured itself.
    assert measured["build_info", commit(), "api", version("rolloutpool-api")] == measured["processes", "api"] == 1
    assert measured["process_cpu_seconds_total", "api"] > 0
    assert measured["redis_memory_bytes",] > 0
    # Each has its series from the start, so that an increase sees the first event too; but for those of labels that
    # only events bring. That there are no others is seen by the dashboard's test (tests/unit/test_monitoring.py).
    described = text_string_to_metric_families((await client.get("/metrics")).text)
    silent = {family.name.removeprefix("rolloutpool_") for family in described if not family.samples}
    assert {name for name in silent if not name.startswith(MEASURED)} == {"drifted_turns"}
    assert {key[1] for key in series if key[0] == "rollouts_ended_total"} == {
        "completed",
        "failed",
        "cancelled",
        "expired",
    }


async def test_rollouts_are_counted_as_they_end(
    client: httpx.AsyncClient, worker: ScriptedWorker, store: Store
) -> None:
    submitted = (await client.post("/v1/batches", json=batch(4))).json()
    done, failed, running, queued = submitted["rollouts"]
    await worker.end(done, alignment="forked", drift={"thinking_stripped": 2}, warnings=["zero_logprobs"])
    await worker.end(failed, status=RolloutStatus.FAILED, finish_reason=FinishReason.ERROR, failure=FAILURE)
    await worker.claim(running)
    await beat(store, "w1", running=1, tokenizers={})
    await client.delete(f"/v1/rollouts/{queued}")
    series = await scrape(client)
    for series_of, value in {
        ("batches_accepted_total",): 1,
        ("rollouts_accepted_total",): 4,
        ("rollouts_ended_total", "completed"): 1,
        ("rollouts_ended_total", "failed"): 1,
        ("rollouts_ended_total", "cancelled"): 1,
        ("rollouts_ended_total", "expired"): 0,
        ("rollout_failures_total", "template_refused", "policy"): 1,
        ("rollout_alignments_total", "forked"): 1,
        ("drifted_turns_total", "thinking_stripped"): 2,
        ("rollout_warnings_total", "zero_logprobs"): 1,
        ("turns_total",): 2,
        ("rollouts_open",): 1,
        ("workers",): 1,
        ("slots",): 8,
        ("rollouts_running",): 1,
    }.items():
        assert series[series_of] == value, series_of


async def test_what_waits_is_seen_by_priority(client: httpx.AsyncClient) -> None:
    await client.post("/v1/batches", json=batch(3, priority="high"))
    series = await scrape(client)
    waiting = {
        priority: sum(series["rollouts_queued", place, priority] for place in ("outbox", "published"))
        for priority in Priority
    }
    assert waiting == {priority: 3 if priority is Priority.HIGH else 0 for priority in Priority}


async def test_every_process_says_the_same_and_none_forgets(redis_url: str, store: Store) -> None:
    async with running_api(redis_url) as first, client_of(first) as client:
        uids = (await client.post("/v1/batches", json=batch(2))).json()["rollouts"]
        for uid in uids:
            await client.delete(f"/v1/rollouts/{uid}")
        before = await scrape(client)
    async with running_api(redis_url) as second, client_of(second) as client:
        after = await scrape(client)
    assert before["rollouts_ended_total", "cancelled"] == 2
    totals = [
        {k: v for k, v in series.items() if k[0].endswith("_total") and not k[0].startswith(MEASURED)}
        for series in (before, after)
    ]
    # What the first process measured is not forgotten either.
    deleted = ("http_requests_total", "200", "DELETE", "/v1/rollouts/{rollout_id}")
    assert after[deleted] == before[deleted] == 2
    assert totals[0] == totals[1]


async def test_an_outage_of_redis_is_a_metric_and_no_error() -> None:
    async with running_api("redis://127.0.0.1:1/0") as api, client_of(api) as client:
        assert await scrape(client) == {("redis_up",): 0}


@pytest.mark.parametrize(
    ("accept", "kind"),
    [("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"), ("*/*", "text/plain")],
)
async def test_the_format_is_what_was_asked_for(client: httpx.AsyncClient, accept: str, kind: str) -> None:
    response = await client.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"].startswith(kind)
    assert response.text.endswith("# EOF\n") is (kind == "application/openmetrics-text")


async def test_where_there_are_keys_one_for_metrics_is_needed(redis_url: str) -> None:
    reader, reads = make_key("prometheus", [KeyScope.METRICS])
    submitter, submits = make_key("job", [KeyScope.SUBMIT, KeyScope.READ])
    keys = f"{reads.entry()} {submits.entry()}"
    async with running_api(redis_url, api_keys_text=keys) as api, client_of(api) as client:
        assert (await client.get("/metrics")).status_code == 401
        refused = await client.get("/metrics", headers={"authorization": f"Bearer {submitter}"})
        assert refused.status_code == 403
        assert "lacks the scope `metrics`" in refused.json()["error"]["message"]
        assert (await client.get("/v1/batches", headers={"authorization": f"Bearer {reader}"})).status_code == 403
        assert (await scrape(client, authorization=f"Bearer {reader}"))["redis_up",] == 1
