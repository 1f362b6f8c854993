"""Regrades: what was asked for, who does it, and how far it is.

1. The API creates one, and has a worker told of it. The worker takes it for `LEASE_MS`, and renews that while it works.
2. After each slice it adds the annotations, under an id that follows from the slice, and then notes how far it is. If
   it dies in between, the slice is graded again, and the annotations are not added twice.
3. It notes all that was done so far, not what the slice has added, so a note that arrives twice counts once.
4. Nothing looks for a regrade whose worker has died. When somebody asks how far it is, the API finds that no worker has
   it (`ask`), and has another one told.
"""

from pydantic import BaseModel

from rolloutpool_common.capabilities.grading.annotating import Regrade, RegradeState
from rolloutpool_common.capabilities.grading.wire import GraderChoice
from rolloutpool_common.store import Store
from rolloutpool_common.store.errors import store_errors

REGRADE_TASK = "rolloutpool.regrade"
"""Celery's name of the task that does one; its argument is the id."""
LEASE_MS = 20_000
ASK_MS = 10_000
"""A worker that was told takes it within this time, unless all are busy."""
KEEP_SECONDS = 24 * 3600
"""From the last note."""
_FAILURE = "failure:"


class RegradeJob(BaseModel):
    """Holds what is to be done."""

    batch: str
    """Its id."""
    grader: GraderChoice
    annotation: str
    indexes: list[int]
    max_bytes: int
    """What the annotations of the batch may take."""


class Regrades:
    """The regrades in one store."""

    def __init__(self, store: Store) -> None:
        self._redis = store.connection.redis

    async def create(self, regrade_id: str, job: RegradeJob) -> None:
        """Creates a regrade; one that exists under this id stays as it is."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.hsetnx(_key(regrade_id), "job", job.model_dump_json())
            pipe.hsetnx(_key(regrade_id), "done", 0)
            pipe.expire(_key(regrade_id), KEEP_SECONDS)
            await pipe.execute()

    async def read(self, regrade_id: str) -> tuple[RegradeJob, Regrade] | None:
        """Reads what is to be done, and how far it is; None where there is no such regrade."""
        with store_errors():
            raw = await self._redis.hgetall(_key(regrade_id))
        fields = {name.decode(): value for name, value in sorted(raw.items())}
        if "job" not in fields:
            return None
        job = RegradeJob.model_validate_json(fields["job"])
        return job, Regrade(
            regrade_id=regrade_id,
            batch_id=job.batch,
            grader=job.grader.name,
            annotation=job.annotation,
            state=RegradeState.COMPLETE if int(fields["done"]) >= len(job.indexes) else RegradeState.RUNNING,
            total=len(job.indexes),
            graded=int(fields.get("graded", 0)),
            left_out=int(fields.get("left_out", 0)),
            failures={name.removeprefix(_FAILURE): int(n) for name, n in fields.items() if name.startswith(_FAILURE)},
        )

    async def take(self, regrade_id: str, worker_id: str) -> bool:
        """Takes a regrade, or renews that; False where another worker has it."""
        with store_errors():
            if await self._redis.set(_key(regrade_id, "_worker"), worker_id, px=LEASE_MS, nx=True):
                return True
            mine = bool(await self._redis.get(_key(regrade_id, "_worker")) == worker_id.encode())
            return mine and bool(await self._redis.pexpire(_key(regrade_id, "_worker"), LEASE_MS))

    async def leave(self, regrade_id: str, worker_id: str) -> None:
        """Gives a regrade back, so that the next one to ask finds it idle."""
        if await self.take(regrade_id, worker_id):
            with store_errors():
                await self._redis.delete(_key(regrade_id, "_worker"), _key(regrade_id, "_told"))

    async def note(self, found: Regrade, worker_id: str) -> bool:
        """Notes how far a regrade is; False where another worker has it."""
        if not await self.take(found.regrade_id, worker_id):
            return False
        counts = {"graded": found.graded, "left_out": found.left_out}
        counts |= {_FAILURE + name: n for name, n in found.failures.items()}
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.hset(_key(found.regrade_id), mapping={"done": found.done, **counts})
            # One that had expired meanwhile must not stay for ever.
            pipe.expire(_key(found.regrade_id), KEEP_SECONDS)
            await pipe.execute()
        return True

    async def ask(self, regrade_id: str) -> bool:
        """Whether a worker should be told of a regrade: none has it, and none was told for `ASK_MS`."""
        with store_errors():
            if await self._redis.exists(_key(regrade_id, "_worker")):
                return False
            return bool(await self._redis.set(_key(regrade_id, "_told"), 1, px=ASK_MS, nx=True))


def _key(regrade_id: str, part: str = "") -> str:
    return f"rp:regrade{part}:{regrade_id}"
