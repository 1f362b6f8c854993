"""Documents of the pool's API, for tests of what reads them."""

from typing import Any

BATCH = "b" + "0" * 32


def result(index: int, **changes: Any) -> dict[str, Any]:
    """A completed rollout of one turn with two sampled tokens."""
    document: dict[str, Any] = {
        "uid": f"{BATCH}-{index}",
        "rollout_id": f"r{index}",
        "batch_id": BATCH,
        "index": index,
        "status": "completed",
        "finish_reason": "stop",
        "messages": [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "2"}],
        "samples": [
            {
                "prompt_ids": [1, 2],
                "response_ids": [3, 4],
                "response_mask": [1, 1],
                "response_logprobs": [-0.5, -0.25],
                "segments": [{"kind": "sampled", "start": 0, "n": 2, "turn": 1}],
            }
        ],
        "alignment": "exact",
        "num_llm_calls": 1,
        "response_tokens": 2,
    }
    return document | changes


def page(*indices: int, complete: bool = False) -> dict[str, Any]:
    """A page with these rollouts; the cursor of rollout i is `i-0`."""
    items = [{"cursor": f"{index}-0", "result": result(index)} for index in indices]
    return {"items": items, "next_cursor": items[-1]["cursor"] if items else "0", "complete": complete}


def status(*, state: str = "complete", total: int = 2, **changes: Any) -> dict[str, Any]:
    """A batch's state."""
    ended = total if state == "complete" else 0
    document: dict[str, Any] = {
        "batch_id": BATCH,
        "state": state,
        "cancelled": False,
        "total": total,
        "counts": {"completed": ended, "queued": total - ended},
        "progress": ended / total,
        "rates": {"rollouts_per_second": 1.5, "sampled_tokens_per_second": 20.0},
        "alignment": {"exact": ended},
        "drift": {},
        "warnings": {},
        "sampled_tokens": 4,
        "total_tokens": 8,
        "turns": 2,
        "delivery": {},
        "priority": "default",
        "labels": {},
        "created_at": "2026-01-01T00:00:00Z",
        "finished_at": None,
    }
    return document | changes


def accepted(total: int = 2) -> dict[str, Any]:
    """The receipt of a batch."""
    return {"batch_id": BATCH, "total": total, "rollouts": [f"{BATCH}-{index}" for index in range(total)]}


def worker(**changes: Any) -> dict[str, Any]:
    """A live worker, as `GET /v1/workers` shows it."""
    document: dict[str, Any] = {
        "worker_id": "w1",
        "host": "h",
        "pid": 42,
        "alive": True,
        "slots": 256,
        "running": 3,
        "tools": ["add"],
        "agents": ["tool_calls"],
        "termination_strategies": ["task_completion"],
        "tokenizers": {"t": {"tokenizer_sha256": "a"}},
        "versions": {"rolloutpool": "1"},
        "started_at": "2026-01-01T00:00:00Z",
        "last_beat_age_s": 0.2,
    }
    return document | changes


def failed(kind: str = "infra", category: str = "network_error") -> dict[str, Any]:
    """Changes to a result: it failed."""
    failure = {"kind": kind, "boundary": "trainer", "category": category, "message": "no", "retryable": False}
    return {"status": "failed", "finish_reason": "error", "failure": failure}


def results_page(batch_id: str, results: dict[int, dict[str, Any]], *, complete: bool = True) -> dict[str, Any]:
    """A page with these results of a batch: changes by index."""
    items = [
        {"cursor": f"{i}-0", "result": result(i, batch_id=batch_id, uid=f"{batch_id}-{i}", **changes)}
        for i, changes in results.items()
    ]
    return {"items": items, "next_cursor": items[-1]["cursor"] if items else "0", "complete": complete}


def group_column(batch_id: str, *groups: str | None) -> dict[str, Any]:
    """The table of a batch, of which only the groups were asked for."""
    return {
        "batch_id": batch_id,
        "total": len(groups),
        "matched": len(groups),
        "created_ms": 0,
        "now_ms": 1,
        "columns": {"group": list(groups)},
        "next_cursor": None,
    }


def version_segment(version: str | None, n: int = 2) -> dict[str, Any]:
    """Changes to a result: these weights sampled it."""
    sample = {
        "prompt_ids": [1, 2],
        "response_ids": list(range(3, 3 + n)),
        "response_mask": [1] * n,
        "response_logprobs": [-0.5] * n,
        "segments": [{"kind": "sampled", "start": 0, "n": n, "turn": 1, "policy_version": version}],
    }
    return {"samples": [sample]}
