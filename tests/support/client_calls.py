"""What each method of a client asks the pool for, and what it returns of the answer."""

from collections.abc import Callable
from typing import Any

from tests.support.answered_pool import GROUP, REGRADE, RUN, STATISTICS, SUMMARY, VIEW
from tests.support.api_documents import BATCH, accepted, page, status, worker

from rolloutpool_common.protocol.groups import GroupVerdict
from rolloutpool_common.protocol.health import Health
from rolloutpool_trainer.client.sync import RolloutClient

MESSAGES = [{"role": "user", "content": "hi"}]
RESULTS = f"/v1/batches/{BATCH}/results"
UID = f"{BATCH}-0"
OF_BATCH, OF_ROLLOUT = f"/v1/batches/{BATCH}", f"/v1/rollouts/{UID}"
SHA = "ab" * 32
SESSION = {"uid": UID, "url": "http://door", "key": "k", "calls": 1, "waiting": 0, "over": False}
ROWS = {"batch_id": BATCH, "total": 2, "matched": 2, "created_ms": 0, "now_ms": 1}
V1 = {"rollout_id": "r", "server_url": "http://h", "messages": MESSAGES, "sampling_params": {}}
ANSWERED = {"rollout_id": "r", "status": "COMPLETED", "finish_reason": "stop", "final_messages": MESSAGES}
HISTORY = {"uid": UID, "rollout_id": "r0", "status": "completed", "accepted_ms": 1, "now_ms": 3, "ended_ms": 2}
TOOL = {"type": "function", "function": {"name": "add"}}
CHECK = {"server_url": "http://t", "ok": True, "detail": "answered 200", "ms": 1.5}
FORK = {"turn": 2, "server_url": "http://h:1", "n": 1, "temperature": 0.5}

Asks = Callable[[RolloutClient], Any]
CALLS: dict[str, tuple[Asks, str, Any, Any, Any]] = {
    "batches": (
        lambda client: [
            found.batch_id
            for found in client.batches(
                run="job7", state="complete", labels={"step": "2"}, v1=True, owner="ann", limit=3
            )
        ],
        "GET /v1/batches?limit=3&run=job7&state=complete&label=step%3D2&v1=true&owner=ann",
        None,
        {"batches": [SUMMARY], "next_cursor": None},
        [BATCH],
    ),
    "rollout": (lambda client: client.rollout(V1).finish_reason, "POST /rollout", V1, ANSWERED, "stop"),
    "get_rollout": (lambda client: client.get_rollout("r/0").turns, "GET /v1/rollouts/r%2F0", None, VIEW, 1),
    "history": (
        lambda client: client.history(UID).ended_ms,
        f"GET {OF_ROLLOUT}/history",
        None,
        HISTORY | {"not_before_ms": None, "attempts": []},
        2,
    ),
    "token_pieces": (
        lambda client: client.token_pieces(SHA).pieces,
        f"GET /v1/tokenizers/{SHA}/pieces",
        None,
        {"tokenizer_sha256": SHA, "pieces": ["Hi", None]},
        ["Hi", None],
    ),
    "cancel_rollout": (lambda client: client.cancel_rollout(UID), f"DELETE {OF_ROLLOUT}", None, {"@": 1}, True),
    "tools": (
        lambda client: [tool.function.name for tool in client.tools()],
        "GET /tools",
        None,
        {"tools": [TOOL]},
        ["add"],
    ),
    "workers": (
        lambda client: [(found.worker_id, found.pid, found.started_at.year) for found in client.workers()],
        "GET /v1/workers",
        None,
        {"workers": [worker(worker_id="w")]},
        [("w", 42, 2026)],
    ),
    "preflight": (
        lambda client: [found.ok for found in client.preflight(["http://t"])],
        "POST /v1/preflight",
        {"server_urls": ["http://t"]},
        {"worker": "w", "endpoints": [CHECK]},
        [True],
    ),
    "dead_letters": (
        lambda client: client.dead_letters().rollouts,
        "GET /v1/dead-letters",
        None,
        {"rollouts": ["u"], "pushes": []},
        ["u"],
    ),
    "requeue": (
        lambda client: client.requeue(UID).batch_id,
        f"POST /v1/dead-letters/{UID}/requeue",
        None,
        accepted(),
        BATCH,
    ),
    "health": (lambda client: client.health(), "GET /health", None, {"status": "healthy"}, Health()),
    "fork": (
        lambda client: client.fork("r/0", turn=2, trainer="http://h:1", temperature=0.5).batch_id,
        "POST /v1/rollouts/r%2F0/fork",
        FORK,
        accepted(),
        BATCH,
    ),
    "attachments": (
        lambda client: client.attachments(UID).pieces,
        f"GET {OF_ROLLOUT}/attachments",
        None,
        {"uid": UID, "pieces": []},
        [],
    ),
    "annotations": (
        lambda client: client.annotations(UID).scalars,
        f"GET {OF_ROLLOUT}/annotations",
        None,
        {"uid": UID, "scalars": {"reward": 0.5}, "streams": {}},
        {"reward": 0.5},
    ),
    "run": (lambda client: client.run("job/7 é").policy_version, "GET /v1/runs/job%2F7%20%C3%A9", None, RUN, 13),
    "announce": (
        lambda client: client.announce("job7", 12, rollback=True).policy_version,
        "PUT /v1/runs/job7/policy_version",
        {"policy_version": 12, "rollback": True},
        RUN,
        13,
    ),
    "pause": (lambda client: client.pause("job7").pause_left_s, "POST /v1/runs/job7/pause", None, RUN, 3599.5),
    "resume": (lambda client: client.resume("job7").run, "POST /v1/runs/job7/resume", None, RUN, "job7"),
    "groups_as_completed": (
        lambda client: [group.group for group in client.batch(BATCH).groups_as_completed()],
        f"GET {OF_BATCH}/rollouts?sort=index&limit=10000&fields=group",
        None,
        ROWS | {"total": 0, "columns": {"group": []}, "next_cursor": None},
        [],
    ),
    "trainable_groups": (
        lambda client: list(client.batch(BATCH).trainable_groups()),
        f"GET {OF_BATCH}/rollouts?sort=index&limit=10000&fields=group",
        None,
        ROWS | {"total": 0, "columns": {"group": []}, "next_cursor": None},
        [],
    ),
    "summary": (
        lambda client: client.batch(BATCH).summary()["rollouts"],
        f"GET {RESULTS}?cursor=0",
        None,
        page(0, 1, complete=True),
        2,
    ),
    "summaries": (
        lambda client: [item.summary["uid"] for item in client.batch(BATCH).summaries("7-0")],
        f"GET {RESULTS}?view=summary&cursor=7-0",
        None,
        {"items": [{"cursor": "8-0", "summary": {"uid": UID}}] * 2, "next_cursor": "8-0", "complete": True},
        [UID],
    ),
    "status": (lambda client: client.batch(BATCH).status().turns, f"GET {OF_BATCH}", None, status(), 2),
    "table": (
        lambda client: client.batch(BATCH).table(["index"], where=["turns>1"], sort="-turns"),
        f"GET {OF_BATCH}/rollouts?sort=-turns&where=turns%3E1&limit=10000&fields=index",
        None,
        ROWS | {"columns": {"index": [1, 0]}, "next_cursor": None},
        {"index": [1, 0]},
    ),
    "groups": (
        lambda client: [group.verdict for group in client.batch(BATCH).groups()],
        f"GET {OF_BATCH}/groups",
        None,
        {"groups": [GROUP]},
        [GroupVerdict.USABLE],
    ),
    "cancel": (lambda client: client.batch(BATCH).cancel(), f"DELETE {OF_BATCH}", None, {}, None),
    "purge": (
        lambda client: client.batch(BATCH).purge().purged,
        f"DELETE {OF_BATCH}?purge=true",
        None,
        {"batch_id": BATCH, "purged": True},
        True,
    ),
    "regrade": (
        lambda client: client.batch(BATCH).regrade("exact", rollouts=[0], retries=1).graded,
        f"POST {OF_BATCH}/regrades",
        {"grader": {"name": "exact", "deadline_seconds": 600.0, "retries": 1}, "rollouts": [0], "annotation": "reward"},
        REGRADE,
        1,
    ),
    "annotate": (
        lambda client: client.batch(BATCH).annotate({"reward": {0: 1.0}}, streams={"kl": {0: []}}),
        f"POST {OF_BATCH}/annotations",
        {"items": [{"rollout": 0, "scalars": {"reward": 1.0}, "streams": {"kl": []}}]},
        {"batch_id": BATCH, "bytes_used": 1, "bytes_left": 1},
        None,
    ),
    "group_statistics": (
        lambda client: [group.mean for group in client.batch(BATCH).group_statistics("kl")],
        f"GET {OF_BATCH}/group-statistics?of=kl",
        None,
        {"of": "kl", "groups": [STATISTICS], "zero_spread": 1},
        [1.0],
    ),
    "session": (
        lambda client: client.batch(BATCH).session().key,
        f"GET /v1/sessions/{UID}",
        None,
        SESSION,
        "k",
    ),
    "end_session": (
        lambda client: client.batch(BATCH).end_session(reward=0.5).calls,
        f"POST /v1/sessions/{UID}/end",
        {"reward": 0.5, "reward_parts": {}, "failed": None},
        SESSION,
        1,
    ),
    "retry_pushes": (
        lambda client: client.batch(BATCH).retry_pushes(),
        f"POST {OF_BATCH}/pushes/retry",
        None,
        {"batch_id": BATCH, "due": 3},
        3,
    ),
}
"""By method: how it is called, what the pool is asked, with which body, what it answers, and what is returned."""
