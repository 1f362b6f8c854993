"""Whether the pool can run rollouts, and what puts it at risk: for `/readyz`, and for the overview."""

from rolloutpool_api.errors import NotReady
from rolloutpool_api.services import ApiServices
from rolloutpool_common.protocol.health import Ready
from rolloutpool_common.store import StoreError


async def readiness(services: ApiServices) -> Ready:
    """Looks at Redis, the workers and the room for more; raises `NotReady` with the reasons where nothing would run."""
    services.raise_if_stopping()
    try:
        redis_ms = await services.store.ping()
        warnings = [*await services.store.warnings(), *await services.store.doubts.warnings()]
        known, unreadable = await services.store.workers.listed()
    except StoreError as error:
        raise NotReady("not ready", reasons=[error.message]) from None
    live = sum(worker.alive for worker in known)
    if not live:
        strange = [f"worker {one.worker_id[:64]} cannot be read: {one.why}" for one in unreadable]
        raise NotReady("not ready", reasons=["no worker is alive; start one with `rolloutpool worker`", *strange])
    try:
        submits, why = await services.takes_submits()
        narrow = await services.too_little_memory(sum(worker.slots for worker in known if worker.alive))
    except StoreError as error:
        raise NotReady("not ready", reasons=[error.message]) from None
    if narrow is not None:
        warnings.append(narrow)
    if why:
        warnings.append(why)
    if (fault := services.keys.fault) is not None:
        warnings.append(fault)
    return Ready(redis_ms=redis_ms, workers=live, submits=submits, warnings=warnings)
