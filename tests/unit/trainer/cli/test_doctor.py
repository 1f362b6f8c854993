"""Each check of the doctor, sick and healthy."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.api_documents import worker
from tests.support.stub_pool import Answer, StubPool, stub_pool
from typer.testing import CliRunner

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer.cli import app
from rolloutpool_trainer.cli import doctor as module
from rolloutpool_trainer.cli.doctor import examine
from rolloutpool_trainer.cli.findings import DoctorFinding, DoctorVerdict
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy


@pytest.fixture
def pool() -> Iterator[StubPool]:
    with stub_pool() as served:
        served.on("GET", "/health", Answer(body={"status": "healthy"}))
        yield served


def findings(pool: StubPool, *workers: dict[str, Any], callbacks: tuple[str, ...] = ()) -> dict[str, DoctorFinding]:
    """The last finding of each check."""
    pool.on("GET", "/readyz", Answer(body={"status": "ready", "redis_ms": 0.4, "workers": 1}))
    pool.on("GET", "/v1/workers", Answer(body={"workers": list(workers)}))
    with RolloutClient(pool.url, timeout=0) as client:
        return {finding.check: finding for finding in examine(client, callbacks)}


def test_nobody_there() -> None:
    with RolloutClient("http://127.0.0.1:1", timeout=0) as client:
        found = list(examine(client, ()))
    assert found[0].verdict is DoctorVerdict.FAILED
    assert "rolloutpool up" in found[0].detail
    assert [(finding.check, finding.verdict) for finding in found[1:]] == [
        (check, DoctorVerdict.NOT_CHECKED) for check in ("readiness", "workers", "tokenizers", "callbacks")
    ]


def test_without_the_scope_of_an_admin_workers_are_not_checked(pool: StubPool) -> None:
    pool.on("GET", "/readyz", Answer(body={"status": "ready", "redis_ms": 0.4, "workers": 1}))
    pool.on("GET", "/v1/workers", Answer(403, {"error": {"message": "this key may not do this"}}))
    with RolloutClient(pool.url, timeout=0) as client:
        found = {finding.check: finding for finding in examine(client, ())}
    for check in ("workers", "tokenizers"):
        assert found[check].verdict is DoctorVerdict.NOT_CHECKED
        assert "scope admin" in found[check].detail


def test_not_ready_says_why(pool: StubPool) -> None:
    error = {"message": "not ready", "reasons": ["Redis does not answer", "no worker"]}
    pool.on("GET", "/readyz", Answer(503, {"error": error}))
    found = findings(pool)
    assert found["readiness"] == DoctorFinding("readiness", DoctorVerdict.FAILED, "Redis does not answer; no worker")
    assert found["workers"].verdict is DoctorVerdict.FAILED
    assert found["tokenizers"].verdict is DoctorVerdict.NOT_CHECKED


def test_settings_of_redis_are_warnings(pool: StubPool) -> None:
    ready = {"status": "ready", "redis_ms": 0.4, "workers": 1, "warnings": ["no file", "no limit"]}
    pool.on("GET", "/readyz", Answer(body=ready))
    pool.on("GET", "/v1/workers", Answer(body={"workers": [worker()]}))
    with RolloutClient(pool.url, timeout=0) as client:
        found = [(f.verdict, f.detail) for f in examine(client, ()) if f.check == "Redis"]
    assert found == [(DoctorVerdict.WARNING, "no file"), (DoctorVerdict.WARNING, "no limit")]


@pytest.mark.parametrize(
    ("submits", "about", "warning"),
    [
        ("open", "keys", "ROLLOUTPOOL_API_KEYS_FILE can't be used"),
        ("closed", "submits", "submits of all keys are refused"),
        ("open", "deltas", "delta_doubted: deltas of template 0123456789abcdef go by the rule"),
    ],
)
def test_what_callers_should_know_of_the_pool_is_a_warning(
    pool: StubPool, submits: str, about: str, warning: str
) -> None:
    ready = {"status": "ready", "redis_ms": 0.4, "workers": 1, "submits": submits, "warnings": [warning]}
    pool.on("GET", "/readyz", Answer(body=ready))
    pool.on("GET", "/v1/workers", Answer(body={"workers": [worker()]}))
    with RolloutClient(pool.url, timeout=0) as client:
        found = {f.check: f for f in examine(client, ())}
    assert found[about] == DoctorFinding(about, DoctorVerdict.WARNING, warning)
    assert (found["readiness"].verdict is DoctorVerdict.OK) == (submits == "open")


def test_a_silent_worker(pool: StubPool) -> None:
    found = findings(pool, worker(), worker(worker_id="w2", last_beat_age_s=4.0))
    assert found["workers"].verdict is DoctorVerdict.WARNING
    assert found["workers"].detail == "w2 on h has been silent for 4 s, and keeps its 3 rollouts until it is lost"


def test_a_worker_of_the_release_before_is_named(pool: StubPool) -> None:
    found = findings(pool, worker(), worker(reads=3))["releases"]
    assert found.verdict is DoctorVerdict.WARNING
    assert found.detail.startswith("1 of an older release get no new work")


def test_mixed_versions(pool: StubPool) -> None:
    assert findings(pool, worker(), worker(versions={"rolloutpool": "2"}))["versions"].verdict is DoctorVerdict.WARNING


def test_tokenizers_must_be_the_same(pool: StubPool) -> None:
    found = findings(pool, worker(), worker(tokenizers={"t": {"tokenizer_sha256": "b"}}))
    assert found["tokenizers"].verdict is DoctorVerdict.FAILED
    assert "2 fingerprints" in found["tokenizers"].detail


def test_cold_tokenizers(pool: StubPool) -> None:
    assert findings(pool, worker(tokenizers={}))["tokenizers"].verdict is DoctorVerdict.WARNING


def test_callbacks(pool: StubPool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(pool, worker(), callbacks=(pool.url,))["callback"].verdict is DoctorVerdict.WARNING
    monkeypatch.setattr(module, "CALLBACK_PORTS", range(1, 65536))
    assert findings(pool, worker(), callbacks=(pool.url,))["callback"].verdict is DoctorVerdict.OK


def test_an_endpoint_that_does_not_name_its_answers_is_warned_of(pool: StubPool) -> None:
    found = findings(pool, worker(), callbacks=(pool.url,))["turn key"]
    assert found.verdict is DoctorVerdict.WARNING
    assert "does not repeat Idempotency-Key as X-Turn-Key" in found.detail
    tokenizer = load_tokenizer(str(TINY_TOKENIZER))
    with serve_callback(callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer), [0]) as served:
        assert findings(pool, worker(), callbacks=(served.url,))["turn key"].verdict is DoctorVerdict.OK


def test_the_usual_callback_ports() -> None:
    assert (module.CALLBACK_PORTS[0], module.CALLBACK_PORTS[-1]) == (8080, 8130)


@pytest.mark.parametrize("url", ["ftp://h", "nonsense", "http://h:99999"])
def test_a_callback_that_is_no_url(pool: StubPool, url: str) -> None:
    assert findings(pool, worker(), callbacks=(url,))["callback"].detail == f"{url} is no http(s) URL"


def test_a_callback_that_does_not_answer(pool: StubPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert findings(pool, worker(), callbacks=(url,))["callback"].verdict is DoctorVerdict.FAILED


def test_the_command_fails_with_a_finding_that_does(pool: StubPool) -> None:
    findings(pool)
    done = CliRunner().invoke(app, ["doctor", "--url", pool.url])
    assert done.exit_code == 1
    assert "none is alive" in done.stdout
