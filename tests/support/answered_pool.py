"""A scripted pool with one batch, whose every call is answered."""

from typing import Any

from tests.support.api_documents import BATCH, accepted, page, result, status, worker
from tests.support.stub_pool import Answer, StubPool

SUMMARY: dict[str, Any] = {
    "batch_id": BATCH,
    "state": "running",
    "cancelled": False,
    "owner": "ann",
    "run": None,
    "weight": 1,
    "priority": "default",
    "labels": {"step": "\x1b[31m\u2028"},
    "v1": False,
    "total": 2,
    "counts": {"queued": 2},
    "turns": 0,
    "sampled_tokens": 0,
    "failures": {},
    "created_at": "2026-01-01T00:00:00Z",
    "age_s": 12.5,
    "finished_at": None,
    "seconds": 12.5,
}
STATISTICS: dict[str, Any] = {
    "group": "g",
    "size": 2,
    "ended": 2,
    "completed": 2,
    "sampled_tokens": 3.0,
    "annotated": 2,
    "mean": 1.0,
    "deviation": 0.0,
    "min": 1.0,
    "max": 1.0,
    "zero_spread": True,
}
GROUP = {"group": "g", "size": 2, "completed": 2, "failed": 0, "cancelled": 0, "expired": 0, "verdict": "usable"}
VIEW: dict[str, Any] = {
    "uid": f"{BATCH}-0",
    "rollout_id": "r0",
    "batch_id": BATCH,
    "index": 0,
    "group": None,
    "status": "completed",
    "attempt": 1,
    "worker": "w1",
    "turns": 1,
    "result": result(0),
}
URL = f"/v1/batches/{BATCH}"
RUN: dict[str, Any] = {
    "run": "job7",
    "policy_version": 13,
    "reported_version": 12,
    "announced_at": "2026-01-01T00:00:00Z",
    "paused_at": "2026-01-01T00:01:00Z",
    "pause_left_s": 3599.5,
}
"""A paused run."""


REGRADE = {
    "regrade_id": "r1",
    "batch_id": BATCH,
    "grader": "exact",
    "annotation": "reward",
    "state": "complete",
    "total": 2,
    "graded": 1,
    "left_out": 1,
    "failures": {},
}


def answer_all(pool: StubPool) -> None:
    """A pool with one batch."""
    for method, path in (("GET", ""), ("PUT", "/policy_version"), ("POST", "/pause"), ("POST", "/resume")):
        pool.on(method, f"/v1/runs/job7{path}", Answer(body=RUN))
    answers: dict[tuple[str, str], Any] = {
        ("GET", URL): status(warnings={"\u2028 \x9b2J": 1}),
        ("GET", f"{URL}/results"): page(0, 1, complete=True),
        ("GET", "/v1/batches"): {"batches": [SUMMARY], "next_cursor": None},
        ("GET", f"{URL}/group-statistics"): {"of": "reward", "groups": [STATISTICS], "zero_spread": 1},
        ("GET", f"{URL}/groups"): {"groups": [GROUP]},
        ("GET", f"/v1/rollouts/{BATCH}-0"): VIEW,
        ("DELETE", URL): {"batch_id": BATCH, "purged": True},
        ("GET", "/health"): {"status": "healthy"},
        ("GET", "/readyz"): {"status": "ready", "redis_ms": 0.4, "workers": 1},
        ("GET", "/v1/workers"): {"workers": [worker()]},
        ("GET", "/v1/dead-letters"): {"rollouts": [f"{BATCH}-0"], "pushes": []},
        ("POST", "/v1/preflight"): {
            "worker": "w1",
            "endpoints": [{"server_url": "http://h:1", "ok": True, "detail": "200", "ms": 1.0}],
        },
    }
    for (method, path), body in answers.items():
        pool.on(method, path, Answer(body=body))
    pool.on("POST", f"{URL}/regrades", Answer(202, {**REGRADE, "state": "running"}))
    pool.on("GET", f"{URL}/regrades/r1", Answer(body=REGRADE))
    for path in ("/v1/batches", f"/v1/dead-letters/{BATCH}-0/requeue", f"/v1/rollouts/{BATCH}-0/fork"):
        pool.on("POST", path, Answer(202, accepted()))
