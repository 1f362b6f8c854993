"""Workers: each announces itself once, then beats twice a second.

1. A worker announces what it has (tools, agents, slots, role), and is listed in `rp:workers` with the time of its beat.
2. Each beat renews that time. All times are of Redis' clock, because the clocks of hosts differ.
3. It is also subscribed to a channel while its process exists (`lifeline.py`). The reconciler judges by both whether it
   is dead (`verdicts.py`). Its parent may report its end, which needs no judgement.
4. A beat says how long ago the process last got on (`Progress`), in three ways; who finishes rollouts lives.
5. The answer to a beat tells a worker what it missed: that it was declared dead and must end, which claims it must
   stop, a new epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from redis.exceptions import ResponseError

from rolloutpool_common.protocol.offers import spell
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.protocol.workers import UnreadableWorker, Worker, WorkerRole
from rolloutpool_common.store import keys
from rolloutpool_common.store.announcements import WIRE_VERSION, Announcement, read_announcement
from rolloutpool_common.store.answers import named, to_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.schema import SCHEMA_VERSION

BEAT_SECONDS = 0.5
"""Between two beats of a worker."""
CHANNELS = 500
"""Lifelines that one command asks for."""


class BeatAnswer(NamedTuple):
    """Holds what a worker learns from its beat."""

    known: bool
    """False: Redis has no announcement of it, so it must announce itself again."""
    stop: list[str]
    """Tokens of claims that it must stop running."""
    epoch: int
    """If it has risen, Redis was started again, and may have forgotten the last second of what the worker wrote."""
    suspects: int = 0
    """How many suspects wait for an isolated worker."""
    doubts: int = 0
    """How many shapes of deltas are doubted."""
    condemned: bool = False
    """It was declared dead, and others have its rollouts: it must end, for its name is dead for good."""
    notes: Mapping[str, Any] = {}
    """All that the script has answered, by name: also what capabilities tell their parts in the worker."""

    @classmethod
    def parse(cls, answer: list[Any]) -> "BeatAnswer":
        """Reads what `beat.lua` has answered."""
        found = named(answer)
        return cls(
            known=bool(found["known"]),
            stop=[token.decode() for token in found["stop"]],
            epoch=found["epoch"],
            suspects=found["suspects"],
            doubts=found["doubts"],
            condemned=bool(found["condemned"]),
            notes=found,
        )


class Progress(NamedTuple):
    """How many seconds ago a worker's process last got on, in three ways."""

    turned_s: float = 0.0
    """Since its event loop turned."""
    took_s: float = 0.0
    """Since its consumer took a ticket."""
    wrote_s: float = 0.0
    """Since Redis accepted what one of its rollouts wrote."""


NO_PAUSE = Progress()
"""What a process says that got on just now."""


@dataclass(frozen=True, kw_only=True)
class Beat:
    """Holds what a worker says of itself in a beat; the fields are those of `protocol.workers.Worker`."""

    running: int
    tokenizers: dict[str, dict[str, str]]
    loading: Sequence[str] = ()
    unloaded: Sequence[str] = ()
    draining: bool = False
    lifeline: bool = False

    def arguments(self, worker_id: str, progress: Progress = NO_PAUSE) -> tuple[Any, ...]:
        """Makes what `beat.lua` is given for it."""
        return (
            *(worker_id, "running", self.running, "tokenizers", orjson.dumps(self.tokenizers)),
            *("loading", orjson.dumps(self.loading), "unloaded", orjson.dumps(self.unloaded)),
            *("draining", int(self.draining), "life", int(self.lifeline), "turned_ms", int(progress.turned_s * 1000)),
            *("took_ms", int(progress.took_s * 1000), "wrote_ms", int(progress.wrote_s * 1000)),
        )


class WorkersListed(NamedTuple):
    """All workers."""

    workers: list[Worker]
    """Oldest first."""
    unreadable: list[UnreadableWorker]
    """Those whose announcement is of another build and cannot be read."""


class Workers:
    """The workers of one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def announce(
        self, worker_id: str, about: Announcement, *, supervisor: str | None = None, lifeline: bool = False
    ) -> None:
        """Makes the worker known, with its first beat.

        Args:
            worker_id: Its id.
            about: What it says of itself. Which build says so is filled in here.
            supervisor: The id of its parent, which holds the lifeline `sup:{id}` and reports the worker's end; None
                where it has no such parent.
            lifeline: Whether its own lifeline is seen; if not, the reconciler goes by its beats alone.
        """
        about = about.model_copy(update={"wire": WIRE_VERSION, "reads": SCHEMA_VERSION})
        if about.role is WorkerRole.ISOLATED:
            # First, so that it is never counted among the workers that can start one like it (`trials.py`).
            with store_errors():
                await self._redis.sadd(keys.ISOLATED, worker_id)
        # The others have fields of their own, because scripts and the reconciler read them often.
        await self._connection.script(
            *("beat", worker_id, "about", orjson.dumps(about.model_dump()), "running", 0),
            *("offer", spell(about.offer()), "host", about.host),
            *("supervisor", supervisor or "", "life", int(lifeline)),
        )

    async def report_end(self, worker_id: str, end: ProcessEnd) -> None:
        """Says how a worker's process ended; for its parent, which has seen it end.

        The reconciler then needs no other evidence, and puts its rollouts back at once.
        """
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hset(keys.OBITUARIES, worker_id, str(end))
            # Wakes the reconciler, as the end of a rollout wakes who waits for it.
            pipe.xadd(keys.FINISHED, {"batch": keys.ENDS}, maxlen=10_000)
            await pipe.execute()

    async def leave(self, worker_id: str) -> None:
        """Forgets a worker that has given back all of its claims."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.zrem(keys.WORKERS, worker_id)
            pipe.srem(keys.ISOLATED, worker_id)
            pipe.unlink(keys.worker(worker_id), keys.worker(worker_id, "stop"), keys.worker(worker_id, "claims"))
            await pipe.execute()

    async def condemn(self, worker_id: str, beat: bytes = b"", *, lifeline_saves: bool = False) -> bool:
        """Declares a worker dead: under this id it may claim nothing any more."""
        return bool(await self._connection.script("condemn", worker_id, beat, int(lifeline_saves)))

    async def deregister(self, worker_id: str) -> bool:
        """Forgets a worker that was declared dead; False where it has claimed a rollout in the meantime."""
        return bool(await self._connection.script("deregister", worker_id))

    async def known(self) -> list[Worker]:
        """Returns the workers that have not left and were not declared dead, oldest first; those that can be read."""
        return (await self.listed()).workers

    async def listed(self) -> WorkersListed:
        """Returns all workers that have not left and were not declared dead, those that cannot be read apart."""
        with store_errors():
            beats = await self._redis.zrange(keys.WORKERS, 0, -1, withscores=True)
            pipe = self._redis.pipeline(transaction=False)
            pipe.time()
            for worker_id, _ in beats:
                pipe.hgetall(keys.worker(worker_id.decode()))
            redis_time, *hashes = await pipe.execute()
        subscribed = await self._subscribed([worker_id.decode() for worker_id, _ in beats])
        now = to_ms(redis_time)
        workers: list[Worker] = []
        unreadable: list[UnreadableWorker] = []
        for (raw, score), fields in zip(beats, hashes, strict=True):
            # A worker that was removed and still lives has a beat, and no announcement until it makes one again.
            if b"about" in fields:
                worker_id, age_s = raw.decode(), (now - score) / 1000
                read = read_announcement(worker_id, fields, age_s, subscribed=worker_id in subscribed)
                if isinstance(read, Worker):
                    workers.append(read)
                else:
                    unreadable.append(read)
        return WorkersListed(sorted(workers, key=lambda worker: worker.started_at), unreadable)

    async def _subscribed(self, worker_ids: Sequence[str]) -> set[str]:
        """Returns the workers whose lifeline is there; none where this account may not ask."""
        found = set()
        with store_errors():
            for start in range(0, len(worker_ids), CHANNELS):
                some = worker_ids[start : start + CHANNELS]
                try:
                    counts = await self._redis.pubsub_numsub(*map(keys.life, some))
                except ResponseError:
                    return set()
                found |= {worker_id for worker_id, (_, n) in zip(some, counts, strict=True) if n}
        return found

    async def claims(self, worker_id: str) -> list[str]:
        """Returns the uids of the rollouts that it has claimed, sorted."""
        # Each worker asks this every few seconds.
        uids = await self._connection.command("SMEMBERS", keys.worker(worker_id, "claims"))
        return sorted(uid.decode() for uid in uids)

    async def tokens(self, worker_id: str) -> dict[str, str]:
        """Returns the uids of the rollouts that it has claimed, each with the token of its claim."""
        # Two reads: in between a rollout may end or go to another worker, and is then left out.
        uids = await self.claims(worker_id)
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            for uid in uids:
                pipe.hmget(keys.rollout(uid), "worker", "token")
            states = await pipe.execute()
        return {
            uid: token.decode()
            for uid, (worker, token) in zip(uids, states, strict=True)
            if token is not None and worker == worker_id.encode()
        }
