"""The state of a batch: what its hash counts, and what its rollouts wait for."""

from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import BatchState, BatchStatus, CancelCause, Priority, Rates
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import now_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.needs import read_needs
from rolloutpool_common.store.pool_waits import PoolWaits
from rolloutpool_common.store.waits import read_waits, run_wait, stage_waits

_ENDED = tuple(status for status in RolloutStatus if status.terminal)


async def read_state(connection: Connection, pool: PoolWaits, batch_id: str, owner: str | None) -> BatchStatus | None:
    """Reads the state of a batch."""
    with store_errors():
        raw = await connection.redis.hgetall(keys.batch(batch_id))
        now_s = await now_ms(connection.redis) / 1000
    fields = {name.decode(): value for name, value in raw.items()}
    if "total" not in fields or owner not in (None, fields["owner"].decode()):
        return None

    def prefixed(prefix: str) -> dict[str, int]:
        return {k.removeprefix(prefix): int(v) for k, v in sorted(fields.items()) if k.startswith(prefix)}

    total, running, grading = (int(fields.get(name, 0)) for name in ("total", "running", "grading"))
    by_end = {status: int(fields.get(status, 0)) for status in _ENDED}
    ended = sum(by_end.values())
    created_s = int(fields["created_ms"]) / 1000
    finished_s = int(fields["finished_ms"]) / 1000 if "finished_ms" in fields else None
    # A batch may end in the millisecond of its commit, where all of it was cancelled before.
    seconds = max((finished_s or now_s) - created_s, 1e-3)
    sampled = int(fields.get("sampled", 0))
    # What is queued has no counter of its own, so these numbers always add up to the total.
    queued = total - running - grading - ended
    counts = {RolloutStatus.QUEUED: queued, RolloutStatus.RUNNING: running, RolloutStatus.GRADING: grading, **by_end}
    return BatchStatus(
        batch_id=batch_id,
        state=BatchState.RUNNING if finished_s is None else BatchState.COMPLETE,
        cancelled="cancelled_ms" in fields,
        cancel_cause=CancelCause(fields["cancel_cause"].decode()) if "cancel_cause" in fields else None,
        total=total,
        counts=counts,
        progress=ended / total,
        rates=Rates(rollouts_per_second=ended / seconds, sampled_tokens_per_second=sampled / seconds),
        alignment=prefixed("alignment:"),
        drift=prefixed("drift:"),
        failures=prefixed("failure:"),
        warnings=prefixed("warning:"),
        tool_errors=prefixed("tool_error:"),
        waiting=[] if finished_s is not None else await _waiting(connection, pool, fields, counts, now_s),
        sampled_tokens=sampled,
        total_tokens=int(fields.get("tokens", 0)),
        turns=int(fields.get("turns", 0)),
        priority=Priority(fields["priority"].decode()),
        labels=orjson.loads(fields["labels"]),
        created_at=datetime.fromtimestamp(created_s, UTC),
        finished_at=None if finished_s is None else datetime.fromtimestamp(finished_s, UTC),
        **{k: v for capability in CAPABILITIES for k, v in capability.state(fields).items()},
    )


async def _waiting(
    connection: Connection,
    pool: PoolWaits,
    fields: Mapping[str, bytes],
    counts: Mapping[RolloutStatus, int],
    now_s: float,
) -> list[Waiting]:
    """Says what the rollouts of a batch wait for that has not ended."""
    queued, grading = counts[RolloutStatus.QUEUED], counts[RolloutStatus.GRADING]
    lacking: list[Waiting] = []
    if stopped := await run_wait(connection, fields["run"], queued + counts[RolloutStatus.RUNNING] + grading):
        lacking = [stopped]
    elif queued:
        needed = {name for name, _ in orjson.loads(fields.get("tokenizers") or b"[]")}
        lacking = (await pool.look()).waits(needed, queued, read_needs(fields))
    return [*read_waits(fields, now_s), *lacking, *stage_waits(grading)]
