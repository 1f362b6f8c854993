"""Batches to submit and results to end them with, as the API and a worker would make them."""

import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.batch import BatchStatus, Priority
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.protocol.result import Alignment, RolloutResult, Sample, SampleSegment
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Claim, NewBatch, NewRollout, Store
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.reconciliation import Removal
from rolloutpool_common.store.workers import Beat, BeatAnswer

OWNER = "tests"
NOWHERE = "http://127.0.0.1:9"
"""The discard port. No server listens there."""
TOKENIZER = "7e" * 32
"""The hash of the tokenizer that made the results."""


def new_batch(
    rollouts: int | Sequence[dict[str, Any]] = 1,
    *,
    shared: dict[str, Any] | None = None,
    groups: Sequence[str | None] | None = None,
    deadline_s: float | None = None,
    owner: str = OWNER,
    key: str | None = None,
    digest: str = "d",
    priority: Priority = Priority.DEFAULT,
    labels: dict[str, str] | None = None,
    v1: bool = False,
    batch_id: str | None = None,
    **more: Any,
) -> NewBatch:
    """A batch of so many rollouts, or of rollouts with these fields of their own."""
    own = [{} for _ in range(rollouts)] if isinstance(rollouts, int) else list(rollouts)
    common = {
        "sampling_params": {},
        "tokenizer_name": "rolloutpool/tiny",
        "server_url": NOWHERE,
        "messages": [{"role": "user", "content": "Calculate 5 + 3"}],
        **(shared or {}),
    }
    return NewBatch(
        batch_id=batch_id or "b" + uuid.uuid4().hex,
        owner=owner,
        shared=orjson.dumps(common),
        rollouts=[
            NewRollout(
                rollout_id=fields.get("rollout_id"),
                overrides=orjson.dumps(fields),
                group=groups[i] if groups is not None else None,
                deadline_s=deadline_s,
            )
            for i, fields in enumerate(own)
        ],
        priority=priority,
        labels=labels or {},
        idempotency_key=key,
        digest=digest,
        v1=v1,
        **more,
    )


def uids_of(batch: NewBatch) -> list[str]:
    """The uid of each of its rollouts."""
    return [f"{batch.batch_id}-{i}" for i in range(len(batch.rollouts))]


async def submit(store: Store, rollouts: int | Sequence[dict[str, Any]] = 1, **options: Any) -> list[str]:
    """Submits a batch as `new_batch` makes it; returns the uids."""
    batch = new_batch(rollouts, **options)
    await store.batches.submit(batch)
    return uids_of(batch)


async def claim(store: Store, uid: str, worker: str = "w1", role: WorkerRole = WorkerRole.SHARED) -> Claim:
    """A claim that must succeed."""
    claimed = await store.rollouts.claim(uid, worker, role)
    assert isinstance(claimed, Claim), claimed
    return claimed


def result_of(claimed: Claim, **changes: Any) -> RolloutResult:
    """A completed result with one sample: three prompt ids, two sampled ids."""
    fields: dict[str, Any] = {
        "uid": claimed.uid,
        "rollout_id": claimed.spec.rollout_id,
        "batch_id": claimed.batch_id,
        "index": claimed.index,
        "group": claimed.group,
        "status": RolloutStatus.COMPLETED,
        "finish_reason": FinishReason.STOP,
        "messages": [*claimed.spec.messages, Message(role="assistant", content="8")],
        "samples": [
            Sample(
                prompt_ids=[1, 2, 3],
                response_ids=[4, 5],
                response_mask=[1, 1],
                response_logprobs=[-0.5, -0.25],
                segments=[SampleSegment(kind="sampled", start=0, n=2, turn=1)],
            )
        ],
        "alignment": Alignment.EXACT,
        "num_llm_calls": 1,
        "worker": claimed.worker_id,
        "attempt": claimed.attempt,
        "tokenizer": {"tokenizer_sha256": TOKENIZER},
    }
    return RolloutResult(**{**fields, **changes})


async def finish(store: Store, uid: str, worker: str = "w1", **changes: Any) -> Claim:
    """Claims and completes a rollout, with `changes` to its result; returns the claim."""
    claimed = await claim(store, uid, worker)
    await store.rollouts.finish(claimed, result_of(claimed, **changes))
    return claimed


def batch_of(uid: str) -> str:
    """The id of a rollout's batch."""
    return uid.rpartition("-")[0]


async def view_of(store: Store, uid: str) -> RolloutView:
    """What is shown of a rollout that must be there."""
    view = await store.rollouts.view(uid, OWNER)
    assert view is not None
    return view


async def status_of(store: Store, name: str) -> BatchStatus:
    """The status of a batch that must be there, by its id or by the uid of one of its rollouts."""
    status = await store.batches.status(name.partition("-")[0], OWNER)
    assert status is not None
    return status


async def announce(
    store: Store, worker: str, *, slots: int = 1, role: WorkerRole = WorkerRole.SHARED, environments: Sequence[str] = ()
) -> None:
    """Makes a worker known, which has these environments."""
    about = Announcement(
        role=role, host="h", pid=1, slots=slots, agents=["tool_calls"], environments=list(environments)
    )
    await store.workers.announce(worker, about)


async def beat(store: Store, worker: str, **told: Any) -> BeatAnswer:
    """Tells Redis that a worker lives, as its lifeline does; the arguments are the fields of `Beat`."""
    return BeatAnswer.parse(await store.connection.script("beat", *Beat(**told).arguments(worker)))


async def declare_dead(store: Store, worker: str, end: ProcessEnd | None = None) -> Removal:
    """Lets a worker end, as its parent reports it (SIGSEGV, unless told otherwise), and the reconciler remove it."""
    await store.workers.report_end(worker, end or ProcessEnd.of(-11))
    watch = store.watch()
    try:
        assert await watch.look()
        return await watch.removed()
    finally:
        await watch.close()
