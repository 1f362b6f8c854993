"""Whether the pool can run rollouts, and what puts it at risk: for `/readyz`, and for the overview."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rolloutpool_api.errors import NotReady
from rolloutpool_api.services import ApiServices
from rolloutpool_common.protocol.health import Ready
from rolloutpool_common.protocol.workers import Worker
from rolloutpool_common.store import StoreError
from rolloutpool_common.store.schema import SCHEMA_VERSION

OLD_WORKERS = "all live workers are of an earlier release, which gets no new work; start workers of this one"

QUIET_SECONDS = 10.0
"""A worker that loads a tokenizer may send no heartbeat for some seconds, and nothing is wrong."""


class PoolReadiness(NamedTuple):
    """What a look at Redis, the workers and the room for more has found."""

    redis_ms: float
    live: int
    """Workers whose process is there, as far as can be seen."""
    quiet: list[Worker]
    """Those that send no heartbeat; they keep their rollouts until they are declared dead."""
    submits: Literal["open", "limited", "closed"]
    why: str
    """Why not all submits are taken."""
    warnings: list[str]


async def readiness(services: ApiServices) -> Ready:
    """Answers `/readyz`; raises `NotReady` with the reasons where nothing would run."""
    found = await examine(services)
    said = [silence(found.quiet)] if found.quiet else []
    said += [found.why] if found.why else []
    warnings = [*found.warnings, *said]
    return Ready(redis_ms=found.redis_ms, workers=found.live, submits=found.submits, warnings=warnings)


async def examine(services: ApiServices) -> PoolReadiness:
    """Looks at the pool; raises `NotReady` with the reasons where nothing would run."""
    services.raise_if_stopping()
    try:
        redis_ms = await services.store.ping()
        warnings = [*await services.store.warnings(), *await services.store.doubts.warnings()]
        known, unreadable = await services.store.workers.listed()
        capacity = await services.store.batches.capacity()
        submits, why = await services.takes_submits(capacity)
    except StoreError as error:
        raise NotReady("not ready", reasons=[error.message]) from None
    live = [worker for worker in known if worker.alive]
    quiet = [worker for worker in known if not worker.alive or worker.last_beat_age_s > QUIET_SECONDS]
    if not live:
        reasons = ["no worker is alive; start one with `rolloutpool worker`", *([silence(quiet)] if quiet else [])]
        reasons += [f"worker {one.worker_id[:64]} cannot be read: {one.why}" for one in unreadable]
        raise NotReady("not ready", reasons=reasons)
    if (narrow := services.too_little_memory(capacity, sum(worker.slots for worker in live))) is not None:
        warnings.append(narrow)
    if all(worker.reads < SCHEMA_VERSION for worker in live):
        warnings.append(OLD_WORKERS)
    if (fault := services.keys.fault) is not None:
        warnings.append(fault)
    return PoolReadiness(redis_ms, len(live), quiet, submits, why, warnings)


def silence(quiet: Sequence[Worker]) -> str:
    """Says who has not been heard of."""
    hosts = ", ".join(sorted({worker.host for worker in quiet})[:5])
    who = "1 worker has" if len(quiet) == 1 else f"{len(quiet)} workers have"
    since = max(worker.last_beat_age_s for worker in quiet)
    return f"{who} not been heard of for {since:.0f} s ({hosts})"
