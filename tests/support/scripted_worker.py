"""A worker that is only records in Redis: it claims and ends rollouts when the test says so, and asks no trainer."""

import asyncio
from typing import Any

import httpx
from tests.support.waiting import until

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_common.store import Claim, Store
from rolloutpool_common.store.announcements import Announcement

OWNER = "public"
"""The owner of what is submitted without an API key."""


def calculator() -> list[ToolDefinition]:
    """Four tools in the order of protocol v1."""
    return [ToolDefinition(function=ToolFunction(name=name)) for name in ("add", "subtract", "multiply", "divide")]


class ScriptedWorker:
    """Claims and ends rollouts when the test tells it to."""

    def __init__(self, store: Store, worker_id: str = "w1") -> None:
        self.store = store
        self.worker_id = worker_id

    async def announce(self, **changes: Any) -> None:
        about: dict[str, Any] = {
            "host": "testhost",
            "pid": 1,
            "slots": 8,
            "tools": calculator(),
            "agents": ["tool_calls"],
            "termination_strategies": ["task_completion"],
            "tokenizers": {},
            "own_tokenizers": ["tiny"],
            "versions": {},
        }
        await self.store.workers.announce(self.worker_id, Announcement(**{**about, **changes}))

    async def claim(self, uid: str) -> Claim:
        claim = await self.store.rollouts.claim(uid, self.worker_id)
        assert isinstance(claim, Claim), claim
        return claim

    async def end(self, uid: str, **changes: Any) -> RolloutResult:
        """Claims and completes a rollout, with `changes` to its result."""
        claim = await self.claim(uid)
        result = plain_result(claim, **changes)
        await self.store.rollouts.finish(claim, result)
        return result

    async def end_named(self, rollout_id: str, **changes: Any) -> RolloutResult:
        """As `end`, as soon as somebody has submitted a rollout of this name."""
        return await self.end(await until(lambda: self.store.rollouts.find(rollout_id, OWNER)), **changes)


def plain_result(claim: Claim, **changes: Any) -> RolloutResult:
    """A plain completed result."""
    answer = Message(role="assistant", content="42")
    fields: dict[str, Any] = {
        "uid": claim.uid,
        "rollout_id": claim.spec.rollout_id,
        "batch_id": claim.batch_id,
        "index": claim.index,
        "group": claim.spec.group,
        "labels": claim.spec.labels,
        "metadata": claim.spec.metadata,
        "status": RolloutStatus.COMPLETED,
        "finish_reason": FinishReason.STOP,
        "messages": [*claim.spec.messages, answer],
        "num_llm_calls": 1,
        "prompt_tokens": 10,
        "response_tokens": 3,
        "worker": claim.worker_id,
    }
    return RolloutResult(**{**fields, **changes})


async def run_v1(
    client: httpx.AsyncClient, worker: ScriptedWorker, body: dict[str, Any], **result: Any
) -> httpx.Response:
    """Posts a rollout and ends it."""
    async with asyncio.TaskGroup() as group:
        posted = group.create_task(client.post("/rollout", json=body))
        group.create_task(worker.end_named(body["rollout_id"], **result))
    return posted.result()
