"""`rolloutpool doctor`: checks from this machine whether a pool can do its work, and says what to do if it can't."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from rolloutpool_trainer.cli import options
from rolloutpool_trainer.cli.findings import DoctorFinding, DoctorVerdict

if TYPE_CHECKING:
    from rolloutpool_common.protocol.errors import ErrorDetail
    from rolloutpool_common.protocol.health import Ready
    from rolloutpool_common.protocol.workers import Worker
    from rolloutpool_trainer.client.sync import RolloutClient

CALLBACK_PORTS = range(8080, 8131)
"""Ports that firewalls between pools and trainers usually let through."""
TRIAL_KEY = "doctor/1"
"""Names no turn of any rollout. A callback that names turns repeats it."""
SILENT_SECONDS = 3.0
"""Workers send a heartbeat every half second, so six in a row are missing by then."""


def doctor(
    callback: Annotated[
        list[str] | None, typer.Option(help="A trainer's callback URL to check; may be repeated.")
    ] = None,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Check API, Redis, workers, tokenizers and callback ports."""
    from rich.text import Text

    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import DoctorDocument

    styles = {
        DoctorVerdict.OK: "green",
        DoctorVerdict.WARNING: "yellow",
        DoctorVerdict.FAILED: "bold red",
        DoctorVerdict.NOT_CHECKED: "dim",
    }
    with console.client(url, api_key) as client:
        findings = list(examine(client, callback or ()))
    ok = not any(finding.verdict is DoctorVerdict.FAILED for finding in findings)
    if as_json:
        console.document(DoctorDocument(ok=ok, findings=findings))
    else:
        rows = [
            (finding.check, Text(finding.verdict, style=styles[finding.verdict]), finding.detail)
            for finding in findings
        ]
        console.table(("check", "verdict", "detail"), rows)
    if not ok:
        raise typer.Exit(1)


def examine(client: "RolloutClient", callbacks: "list[str] | tuple[str, ...]") -> Iterator[DoctorFinding]:
    """Runs the checks in order. One that depends on a failed one is not made, and says so."""
    from rolloutpool_trainer.client import calls
    from rolloutpool_trainer.errors import ClientError, Unauthorized

    started = time.perf_counter()
    try:
        client.health()
    except ClientError as error:
        yield DoctorFinding("API", DoctorVerdict.FAILED, f"{error}; start one with: rolloutpool up")
        yield from (_not_checked(check, "the API does not answer") for check in ("readiness", "workers", "tokenizers"))
    else:
        elapsed = (time.perf_counter() - started) * 1000
        yield DoctorFinding("API", DoctorVerdict.OK, f"{client.base_url} answers in {elapsed:.0f} ms")
        yield from _readiness(client.ask(calls.readiness()))
        try:
            listed = client.ask(calls.workers())
        except ClientError as error:
            needs = "it takes a key with the scope admin: " if isinstance(error, Unauthorized) else ""
            yield from (_not_checked(check, f"{needs}{error}") for check in ("workers", "tokenizers"))
        else:
            for one in listed.unreadable:
                yield DoctorFinding("workers", DoctorVerdict.WARNING, f"{one.worker_id} cannot be read: {one.why}")
            yield from _workers(listed.workers)
    if not callbacks:
        yield _not_checked("callbacks", "--callback URL checks one")
    for callback in callbacks:
        yield from _callback(callback)


def _not_checked(check: str, why: str) -> DoctorFinding:
    return DoctorFinding(check, DoctorVerdict.NOT_CHECKED, why)


def _readiness(answer: "Ready | ErrorDetail") -> Iterator[DoctorFinding]:
    from rolloutpool_common.protocol.health import Ready

    if not isinstance(answer, Ready):
        yield DoctorFinding("readiness", DoctorVerdict.FAILED, "; ".join(answer.reasons or [answer.message]))
        return
    taken = {"open": "work is taken", "limited": "work of some keys is taken", "closed": "no more work is taken"}
    verdict = DoctorVerdict.OK if answer.submits == "open" else DoctorVerdict.WARNING
    yield DoctorFinding("readiness", verdict, f"Redis answers in {answer.redis_ms:.1f} ms, {taken[answer.submits]}")
    for warning in answer.warnings:
        is_keys, is_submits = "ROLLOUTPOOL_API_KEYS_FILE" in warning, warning.startswith("submits ")
        is_deltas, is_workers = warning.startswith("delta_doubted"), "worker" in warning.partition(" (")[0]
        about = "keys" if is_keys else "submits" if is_submits else "deltas" if is_deltas else "Redis"
        about = "workers" if is_workers and about == "Redis" else about
        yield DoctorFinding(about, DoctorVerdict.WARNING, warning)


def _workers(workers: "list[Worker]") -> Iterator[DoctorFinding]:
    alive = [worker for worker in workers if worker.alive]
    if not alive:
        yield DoctorFinding(
            "workers", DoctorVerdict.FAILED, "none is alive; start one with: rolloutpool worker --redis URL"
        )
        yield _not_checked("tokenizers", "no worker is alive")
        return
    slots = sum(worker.slots for worker in alive)
    running = sum(worker.running for worker in alive)
    yield DoctorFinding("workers", DoctorVerdict.OK, f"{len(alive)} alive, {running} of {slots} slots in use")
    for worker in workers:
        if worker.last_beat_age_s > SILENT_SECONDS:
            silence = f"{worker.worker_id} on {worker.host} has been silent for {worker.last_beat_age_s:.0f} s"
            yield DoctorFinding(
                "workers", DoctorVerdict.WARNING, f"{silence}, and keeps its {worker.running} rollouts until it is lost"
            )
    if differing := sorted(_differing([worker.versions for worker in alive])):
        yield DoctorFinding("versions", DoctorVerdict.WARNING, f"not the same on all workers: {'; '.join(differing)}")
    newest = max(worker.reads for worker in alive)
    if older := [worker.worker_id for worker in alive if worker.reads < newest]:
        outdated = f"{len(older)} of an older release get no new work; stop them once this release has workers: {older}"
        yield DoctorFinding("releases", DoctorVerdict.WARNING, outdated)
    yield from _tokenizers(alive)


def _differing(versions: "Sequence[Mapping[str, str]]") -> Iterator[str]:
    for name in {name for one in versions for name in one}:
        found = sorted({one.get(name, "none")[:12] for one in versions})
        if len(found) > 1:
            yield f"{name} {', '.join(found)}"


def _tokenizers(alive: "list[Worker]") -> Iterator[DoctorFinding]:
    prints: dict[str, set[str]] = {}
    for worker in alive:
        for name, fingerprint in worker.tokenizers.items():
            prints.setdefault(name, set()).add(str(fingerprint))
    if not prints:
        hint = (
            "none is loaded, so the first rollout of each waits until it is. ROLLOUTPOOL_TOKENIZERS loads them at start"
        )
        yield DoctorFinding("tokenizers", DoctorVerdict.WARNING, hint)
    for name, seen in prints.items():
        if len(seen) > 1:
            detail = f"{name} is not the same everywhere: {len(seen)} fingerprints; install one version on all workers"
            yield DoctorFinding("tokenizers", DoctorVerdict.FAILED, detail)
        else:
            yield DoctorFinding(
                "tokenizers", DoctorVerdict.OK, f"{name} is loaded, and the same on all workers that have it"
            )


def _callback(url: str) -> Iterator[DoctorFinding]:
    import httpx

    from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENCY, HEADER_TURN_KEY
    from rolloutpool_trainer.client.transport import connection_settings

    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (KeyError, ValueError):
        yield DoctorFinding("callback", DoctorVerdict.FAILED, f"{url} is no http(s) URL")
        return
    try:
        with httpx.Client(**connection_settings(url.rstrip("/"), None)) as http:
            answer = http.get("/health", timeout=5.0, headers={HEADER_IDEMPOTENCY: TRIAL_KEY})
    except (httpx.TransportError, httpx.InvalidURL) as error:
        yield DoctorFinding("callback", DoctorVerdict.FAILED, f"{url} does not answer from this machine: {error}")
        return
    if port not in CALLBACK_PORTS:
        span = f"{CALLBACK_PORTS.start} to {CALLBACK_PORTS.stop - 1}"
        yield DoctorFinding(
            "callback", DoctorVerdict.WARNING, f"{url} answers, but firewalls may let only ports {span} through"
        )
    else:
        yield DoctorFinding("callback", DoctorVerdict.OK, f"{url} answers")
    if answer.headers.get(HEADER_TURN_KEY) == TRIAL_KEY:
        yield DoctorFinding("turn key", DoctorVerdict.OK, f"{url} says which request an answer belongs to")
    else:
        silent = (
            f"{url} does not repeat {HEADER_IDEMPOTENCY} as {HEADER_TURN_KEY} (asked: GET /health), so a proxy that "
            "mixes answers is not noticed. Send it with each answer; callback_app does, and an engine need not"
        )
        yield DoctorFinding("turn key", DoctorVerdict.WARNING, silent)
