"""`python -m rolloutpool_worker.process.health`: whether the workers of this container take work; for its health check.

It asks Redis what the API and the reconciler go by: whether a worker of this host has beaten in the last seconds. So a
worker that hangs, or whose Redis is away, is unhealthy, and so is one that drains. It costs 0.5 s of CPU, so once a
minute is often enough. Nothing else depends on the answer: work of a dead worker is requeued without it.
"""

import asyncio
import socket
import sys

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.settings import SettingsInvalid, refuse_start
from rolloutpool_common.protocol.workers import WorkerState
from rolloutpool_common.store import Store
from rolloutpool_worker.settings import WorkerSettings

SECONDS = 10.0
"""For Redis to answer."""


async def find_fault(redis_url: str, host: str) -> str | None:
    """Says why no worker of a host takes work; None where one does."""
    store = Store.open(redis_url, max_connections=1)
    try:
        async with asyncio.timeout(SECONDS):
            known = [worker for worker in await store.workers.known() if worker.host == host]
    except TimeoutError:
        return "Redis does not answer"
    except RolloutPoolError as error:
        return error.message
    finally:
        await store.close()
    if any(worker.state is WorkerState.ALIVE and not worker.draining for worker in known):
        return None
    if not known:
        return f"no worker of host {host} has announced itself"
    return ", ".join(
        f"worker {worker.worker_id} {'drains' if worker.draining else f'is {worker.state}'}" for worker in known
    )


def main() -> int:
    """Prints what is wrong; returns the exit code."""
    try:
        settings = WorkerSettings.from_environment()
    except SettingsInvalid as error:
        return refuse_start("worker", error)
    fault = asyncio.run(find_fault(settings.redis_url.get_secret_value(), socket.gethostname()))
    if fault is not None:
        print(fault, file=sys.stderr)
    return int(fault is not None)


if __name__ == "__main__":
    sys.exit(main())
