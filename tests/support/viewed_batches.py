"""Batches as the API shows them, for the viewer's tests."""

from typing import Any

from rolloutpool_common.protocol.result import RolloutResult

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u202egnp"
BATCH = "b" + "1" * 32


def batch_line(number: int, **changes: Any) -> dict[str, Any]:
    """A line of the list of batches."""
    counts = {"queued": 0, "running": 2, "completed": 5, "failed": 1, "cancelled": 0, "expired": 0}
    line = {"batch_id": f"b{number:032d}", "state": "running", "cancelled": False, "owner": "ann", "run": "ppo-7"}
    line |= {"labels": {"step": str(number)}, "v1": False, "total": 8, "counts": counts, "turns": 12}
    line |= {"sampled_tokens": 3456, "failures": {"infra:network_error": 1}, "age_s": 61.5, "seconds": 60.2}
    return {**line, **changes}


def table(count: int, **columns: Any) -> dict[str, Any]:
    """A page of rows as the API makes it: groups of 8, of which every fourth has equal rewards, and a slow last row."""
    failed = [i % 7 == 3 for i in range(count)]
    queued = [float(i * 13 % 900) for i in range(count)]
    total = [float(1000 + i * 31 % 4000) + (20_000 if i == count - 1 else 0) for i in range(count)]
    created = 1_000_000
    made: dict[str, list[Any]] = {
        "index": list(range(count)),
        "uid": [f"{BATCH}-{i}" for i in range(count)],
        "group": [f"g{i // 8}" for i in range(count)],
        "rollout_id": [f"rollout-{i}" for i in range(count)],
        "status": ["failed" if fails else "completed" for fails in failed],
        "finish_reason": ["error" if fails else "stop" for fails in failed],
        "category": ["network_error" if fails else None for fails in failed],
        "message": ["no route" if fails else None for fails in failed],
        "drift": [["thinking_stripped"] if i % 11 == 5 else [] for i in range(count)],
        "turns": [i * 7919 % 13 for i in range(count)],
        "tool_calls": [i % 4 for i in range(count)],
        "tool_errors": [i % 4 // 3 for i in range(count)],
        "samples": [1] * count,
        "sampled_tokens": [i * 104729 % 5003 for i in range(count)],
        "claimed_ms": [created + int(wait) for wait in queued],
        "ended_ms": [created + int(wait + ran) for wait, ran in zip(queued, total, strict=True)],
        "queued_ms": queued,
        "tokenizer_ms": [10.0] * count,
        "llm_ms": [ran * 0.6 for ran in total],
        "tools_ms": [ran * 0.2 for ran in total],
        "loop_ms": [int(ran * 0.1) for ran in total],
        "redis_ms": [int(ran * 0.04) for ran in total],
        "total_ms": total,
        "mean_logprob": [-0.5] * count,
        "policy_versions": [["step-7"]] * count,
        "worker": ["w1"] * count,
        "annotations.reward": [1.0 if i // 8 % 4 == 1 else None if i % 5 == 4 else (i % 3) / 2 for i in range(count)],
    }
    return {
        "batch_id": BATCH,
        "total": count,
        "matched": count,
        "created_ms": created,
        "now_ms": created + 100_000,
        "columns": {**made, **columns},
        "next_cursor": None,
    }


def batch_state(count: int, **changes: Any) -> dict[str, Any]:
    """The state of a batch."""
    state = {"batch_id": BATCH, "state": "complete", "total": count, "counts": {"completed": count}, "labels": {}}
    return {**state, "waiting": [], **changes}


def answers(count: int, **columns: Any) -> dict[str, Any]:
    """What the API answers about a batch, by path."""
    return {f"/v1/batches/{BATCH}": batch_state(count), f"/v1/batches/{BATCH}/rollouts": table(count, **columns)}


def rollout_answers(*results: RolloutResult, pieces: bool = True, **views: Any) -> dict[str, Any]:
    """What the API answers about rollouts whose tokens are bytes, by path; they get the uids of `BATCH`, from 0 on."""
    made: dict[str, Any] = {}
    for index, result in enumerate(results):
        uid = f"{BATCH}-{index}"
        tokenizer = {"tokenizer_sha256": "bytes"} if pieces else {}
        told = result.model_copy(update={"uid": uid, "batch_id": BATCH, "index": index, "tokenizer": tokenizer})
        view = {"uid": uid, "rollout_id": result.rollout_id, "batch_id": BATCH, "index": index, "group": result.group}
        view |= {"status": result.status, "attempt": 1, "worker": None, "turns": len(result.turns), "waiting": None}
        made[f"/v1/rollouts/{uid}"] = {**view, "result": told.model_dump(mode="json"), **views}
    if pieces:
        texts: list[str | None] = [chr(byte) if byte < 128 else None for byte in range(256)]
        partial = {str(byte): f"{byte:02x}" for byte in range(128, 256)}
        made["/v1/tokenizers/bytes/pieces"] = {"tokenizer_sha256": "bytes", "pieces": texts, "partial": partial}
    groups = {result.group for result in results}
    if groups != {None}:
        uids = [f"{BATCH}-{index}" for index in range(len(results))]
        rows = table(len(results), uid=uids, group=[result.group for result in results])
        made[f"/v1/batches/{BATCH}/rollouts"] = rows
    return made
