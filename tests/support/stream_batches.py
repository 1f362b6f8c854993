"""Batches of a stub pool, as a stream submits and reads them: two groups of two each, which have ended."""

from typing import Any

from tests.support.api_documents import group_column, results_page
from tests.support.stub_pool import Answer, StubPool


def name_of(position: int) -> str:
    return f"b{position:032d}"


def prompts(count: int) -> list[list[dict[str, Any]]]:
    """Batches of two groups of two; each names its batch."""
    return [
        [{"group": group, "n": 2, "messages": [{"role": "user", "content": f"{i}{group}"}]} for group in "ab"]
        for i in range(count)
    ]


def lay_out(pool: StubPool, position: int, ends: dict[int, dict[str, Any]] | None = None) -> None:
    """A batch that has ended; groups end in the order of their names."""
    batch_id = name_of(position)
    groups = ["a", "a", "b", "b"]
    found = {i: {"group": group} | (ends or {}).get(i, {}) for i, group in enumerate(groups)}
    pool.on("GET", f"/v1/batches/{batch_id}/rollouts", Answer(body=group_column(batch_id, *groups)))
    pool.on("GET", f"/v1/batches/{batch_id}/results", Answer(body=results_page(batch_id, found)))


def accept(pool: StubPool, *positions: int) -> None:
    receipts = [
        {"batch_id": name_of(i), "total": 4, "rollouts": [f"{name_of(i)}-{n}" for n in range(4)]} for i in positions
    ]
    pool.on("POST", "/v1/batches", *(Answer(202, receipt) for receipt in receipts))


def posts(pool: StubPool) -> list[str]:
    """What was submitted, by the prompt of the first rollout."""
    bodies = [request.body for request in pool.requests if request.method == "POST"]
    return [body["rollouts"][0]["messages"][0]["content"] for body in bodies]


def seen(group: Any) -> str:
    return f"{int(group.rollouts[0].batch_id[1:])}{group.group}"
