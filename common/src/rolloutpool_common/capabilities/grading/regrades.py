"""Regrades: what was asked for, who does it, and how far it is.

1. The API creates one, and has a worker told of it. The worker takes it for `LEASE_MS`, and renews that while it works.
2. After each slice it adds the annotations, under an id that follows from the slice, and then notes how far it is. If
   it dies in between, the slice is graded again, and the annotations are not added twice.
3. Nothing looks for a regrade whose worker has died. When somebody asks how far it is, the API finds that no worker has
   it (`ask`), and has another one told.
"""

from dataclasses import dataclass

import orjson

from rolloutpool_common.capabilities.grading.regrading import Regrade, RegradeState
from rolloutpool_common.capabilities.grading.wire import GraderChoice
from rolloutpool_common.store import Store
from rolloutpool_common.store.errors import store_errors

REGRADE_TASK = "rolloutpool.regrade"
"""Celery's name of the task that does one; its argument is the id."""
LEASE_MS = 20_000
ASK_MS = 10_000
"""A worker that was told takes it within this time, unless all are busy."""
KEEP_SECONDS = 24 * 3600
"""From its creation."""
_FAILURE = "failure:"


@dataclass(frozen=True)
class RegradeJob:
    """Holds what is to be done."""

    regrade_id: str
    batch_id: str
    grader: GraderChoice
    annotation: str
    indexes: list[int]
    max_bytes: int
    """What the annotations of the batch may take."""


@dataclass(frozen=True)
class SliceDone:
    """Says what came of a slice of a regrade."""

    begin: int
    """Rollouts that were done before it."""
    end: int
    """Rollouts that are done with it."""
    graded: int
    left_out: int
    failures: dict[str, int]


class Regrades:
    """The regrades in one store."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection
        self._redis = store.connection.redis

    async def create(self, job: RegradeJob) -> None:
        """Creates a regrade; one that exists under this id stays as it is."""
        known = {"batch": job.batch_id, "grader": job.grader.model_dump(mode="json"), "annotation": job.annotation}
        about = orjson.dumps({**known, "indexes": job.indexes, "max_bytes": job.max_bytes})
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.hsetnx(_key(job.regrade_id), "job", about)
            pipe.hsetnx(_key(job.regrade_id), "done", 0)
            pipe.expire(_key(job.regrade_id), KEEP_SECONDS)
            await pipe.execute()

    async def job(self, regrade_id: str) -> RegradeJob | None:
        """Reads what is to be done; None where there is no such regrade."""
        with store_errors():
            about = await self._redis.hget(_key(regrade_id), "job")
        if about is None:
            return None
        read = orjson.loads(about)
        return RegradeJob(
            regrade_id=regrade_id,
            batch_id=read["batch"],
            grader=GraderChoice.model_validate(read["grader"]),
            annotation=read["annotation"],
            indexes=read["indexes"],
            max_bytes=read["max_bytes"],
        )

    async def take(self, regrade_id: str, worker_id: str, *, lease_ms: int = LEASE_MS) -> int | None:
        """Takes a regrade, or renews that; returns how many rollouts are done, None where another worker has it."""
        done = int(await self._connection.script("regrade", regrade_id, worker_id, lease_ms, "", ""))
        return None if done < 0 else done

    async def note(self, regrade_id: str, worker_id: str, done: SliceDone) -> bool:
        """Notes that a slice is done; False where another worker has the regrade."""
        counts = {"graded": done.graded, "left_out": done.left_out}
        counts |= {_FAILURE + name: n for name, n in done.failures.items()}
        fields = [part for name, n in counts.items() if n for part in (name, n)]
        place = ("regrade", regrade_id, worker_id, LEASE_MS, done.begin, done.end)
        return int(await self._connection.script(*place, *fields)) == done.end

    async def read(self, regrade_id: str) -> Regrade | None:
        """Reads how far a regrade is; None where there is no such regrade."""
        job = await self.job(regrade_id)
        with store_errors():
            raw = await self._redis.hgetall(_key(regrade_id))
        fields = {name.decode(): value for name, value in raw.items()}
        if job is None or "done" not in fields:
            return None
        return Regrade(
            regrade_id=regrade_id,
            batch_id=job.batch_id,
            grader=job.grader.name,
            annotation=job.annotation,
            state=RegradeState.COMPLETE if int(fields["done"]) >= len(job.indexes) else RegradeState.RUNNING,
            total=len(job.indexes),
            graded=int(fields.get("graded", 0)),
            left_out=int(fields.get("left_out", 0)),
            failures={
                name.removeprefix(_FAILURE): int(n) for name, n in sorted(fields.items()) if name.startswith(_FAILURE)
            },
        )

    async def ask(self, regrade_id: str) -> bool:
        """Whether a worker should be told of a regrade: none has it, and none was told for `ASK_MS`."""
        return await self.take(regrade_id, "", lease_ms=ASK_MS) is not None


def _key(regrade_id: str) -> str:
    return f"rp:regrade:{regrade_id}"
